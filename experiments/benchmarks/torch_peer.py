"""The PyTorch peer program, run in its own environment: see peers.py.

    python torch_peer.py MODE

See peer_loop.py for the protocol. It does not use dcse_tf.
"""

import functools
import importlib.metadata
import itertools
import json
import pathlib
from typing import Any

import numpy as np
import torch
import transformers
from peer_loop import Settings, Variants, answer, timed

LEARNING_RATE, CLIP_NORM, TEMPERATURE = 1e-5, 3.0, 0.1
BATCHES = 4
SAMPLES, TURNS, CANDIDATES = 16, 3, 10  # per batch; context turns per side; per sample


def read_sessions(path: str) -> list[list[str]]:
    """The texts of each session of a session_tsv file."""
    lines = pathlib.Path(path).read_text(encoding="utf-8").splitlines()
    rows = [line.split("\t") for line in lines]
    groups = itertools.groupby(rows, key=lambda row: row[0])
    return [[row[2] for row in session] for _, session in groups]


def freeze(bert: torch.nn.Module) -> None:
    """Freezes the embeddings and the lower half of the layers, which then keep no activations."""
    layers = bert.encoder.layer
    for part in (bert.embeddings, *layers[: len(layers) // 2]):
        part.requires_grad_(False)


def make_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    return torch.optim.AdamW(trained, lr=LEARNING_RATE, weight_decay=0.01)


def take_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP_NORM)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)


def masked_mean(values: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """Mean of `values` over its second-to-last axis, where the mask is true."""
    weights = mask.unsqueeze(-1).to(values.dtype)
    return (values * weights).sum(-2) / weights.sum(-2).clamp(min=1.0)


def draw_batch(sessions: list[list[str]], tokenizer: Any, longest: int) -> dict[str, torch.Tensor]:
    """Makes a batch of DialogueCSE samples from randomly drawn turns.

    Returns:
        context_ids `[samples, 2 * TURNS, tokens]`, candidate_ids `[samples, CANDIDATES, tokens]`
        (0 = padding; the response comes first), turn_mask `[samples, 2 * TURNS]`.
    """
    texts, present = [], []
    for _ in range(SAMPLES):
        session = sessions[np.random.randint(len(sessions))]
        place = np.random.randint(len(session))
        around = [i for i in range(place - TURNS, place + TURNS + 1) if i != place]
        there = [0 <= i < len(session) for i in around]
        turns = [session[i] if known else "" for i, known in zip(around, there)]
        others = [np.random.randint(len(sessions)) for _ in range(CANDIDATES - 1)]
        texts += [*turns, session[place], *(sessions[i][0] for i in others)]
        present.append(there)
    ids = tokenizer(
        texts, padding=True, truncation=True, max_length=longest, return_tensors="pt"
    ).input_ids.unflatten(0, (SAMPLES, 2 * TURNS + CANDIDATES))
    turn_mask = torch.tensor(present)
    context_ids = ids[:, : 2 * TURNS] * turn_mask.unsqueeze(-1)
    return {
        "context_ids": context_ids,
        "candidate_ids": ids[:, 2 * TURNS :],
        "turn_mask": turn_mask,
    }


def contrastive_loss(bert: torch.nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    """Equations 1 to 4, 7 and 8 of DialogueCSE as printed; encodes every use of an utterance."""
    turns = batch["context_ids"].shape[1]
    token_ids = torch.cat([batch["context_ids"], batch["candidate_ids"]], dim=1)
    mask = token_ids != 0
    attention = mask.clone()
    attention[..., 0] = True  # an absent turn: no row of the attention may be empty
    shape = token_ids.shape
    flat = {"input_ids": token_ids.flatten(0, 1), "attention_mask": attention.flatten(0, 1).long()}
    encoded = bert(**flat).last_hidden_state.unflatten(0, shape[:2])
    context, candidates = encoded[:, :turns], encoded[:, turns:]
    context_mask, candidate_mask = mask[:, :turns], mask[:, turns:]

    # [batch, turns, candidates, context tokens, candidate tokens]
    matching = torch.einsum("btnd,bcmd->btcnm", context, candidates) / encoded.shape[-1] ** 0.5
    matching = matching * candidate_mask[:, None, :, None, :]
    refined = torch.einsum("btcnm,bcmd->btcnd", matching, candidates)
    pooled = masked_mean(refined, context_mask[:, :, None, :])
    context_aware = masked_mean(pooled.transpose(1, 2), batch["turn_mask"][:, None, :])
    context_free = masked_mean(candidates, candidate_mask)
    similarity = torch.nn.functional.cosine_similarity(context_aware, context_free, dim=-1)
    return -torch.log_softmax(similarity / TEMPERATURE, dim=-1)[:, 0].mean()


def plain(settings: Settings) -> tuple[str, Variants]:
    """Measures training steps of the paper's procedure. Settings: model, dialogues, longest."""
    bert = transformers.BertModel.from_pretrained(settings["model"], add_pooling_layer=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    freeze(bert)
    optimizer = make_optimizer(bert.train())
    sessions = read_sessions(settings["dialogues"])
    batches = [draw_batch(sessions, tokenizer, settings["longest"]) for _ in range(BATCHES)]

    def steps() -> None:
        for batch in batches:
            take_step(bert, optimizer, contrastive_loss(bert, batch))

    return "samples", {"PyTorch plain": lambda: timed(steps, samples=SAMPLES * BATCHES)}


def select(settings: Settings) -> tuple[str, Variants]:
    """Measures training steps of a cross-encoder on pairs with a true and a random response.

    Settings: model, dialogues.
    """
    model = transformers.BertForSequenceClassification.from_pretrained(
        settings["model"], num_labels=1
    )
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    optimizer = make_optimizer(model.train())
    sessions = [s for s in read_sessions(settings["dialogues"]) if len(s) > 1]
    labels = torch.tensor([1.0, 0.0]).repeat(SAMPLES)
    loss_of = torch.nn.BCEWithLogitsLoss()

    def draw() -> Any:
        contexts, responses = [], []
        for _ in range(SAMPLES):
            session = sessions[np.random.randint(len(sessions))]
            place = np.random.randint(1, len(session))
            other = sessions[np.random.randint(len(sessions))]
            contexts += [" [SEP] ".join(session[:place])] * 2
            responses += [session[place], other[np.random.randint(1, len(other))]]
        return tokenizer(
            contexts, responses, padding=True, truncation=True, max_length=160, return_tensors="pt"
        )

    batches = [draw() for _ in range(BATCHES)]

    def steps() -> None:
        for batch in batches:
            take_step(model, optimizer, loss_of(model(**batch).logits[:, 0], labels))

    return "samples", {"PyTorch padded": lambda: timed(steps, samples=SAMPLES * BATCHES)}


def embed(settings: Settings) -> tuple[str, Variants]:
    """Writes embeddings by sentence-transformers and by transformers alone, from a model folder.

    Settings: model; sentences; output, the .npz to write, with "embeddings" `[n, dim]` of
    sentence-transformers and "pooled" `[n, dim]`, the mean of transformers' token embeddings, or
    [CLS] if cls is true; cls; save, the folder to save the model to.
    """
    from sentence_transformers import SentenceTransformer

    sentences = pathlib.Path(settings["sentences"]).read_text(encoding="utf-8").splitlines()
    model = SentenceTransformer(settings["model"], device="cpu")
    model.save(settings["save"])
    embeddings = model.encode(sentences, batch_size=32, show_progress_bar=False)
    tokenizer = transformers.AutoTokenizer.from_pretrained(settings["model"])
    bert = transformers.AutoModel.from_pretrained(settings["model"]).eval()
    pooled = []
    for start in range(0, len(sentences), 32):
        part = sentences[start : start + 32]
        batch = tokenizer(part, padding=True, truncation=True, return_tensors="pt")
        with torch.no_grad():
            tokens = bert(**batch).last_hidden_state
        mask = batch["attention_mask"].bool()
        pooled.append(tokens[:, 0] if settings["cls"] else masked_mean(tokens, mask))
    np.savez(settings["output"], embeddings=embeddings, pooled=torch.cat(pooled).numpy())
    return "sentences", {}


def rerank(settings: Settings) -> tuple[str, Variants]:
    """Measures sentence-transformers' CrossEncoder on lists of pairs, and writes its scores.

    Settings: model; pairs, a JSON file of name -> pairs; output, the .npz to write, name -> scores.
    """
    from sentence_transformers import CrossEncoder

    model = CrossEncoder(settings["model"], device="cpu")
    lists = json.loads(pathlib.Path(settings["pairs"]).read_text(encoding="utf-8"))

    def predict(name: str) -> np.ndarray:
        pairs = [tuple(pair) for pair in lists[name]]
        return model.predict(pairs, batch_size=32, show_progress_bar=False)

    np.savez(settings["output"], **{name: predict(name) for name in lists})

    def run(name: str) -> dict[str, float]:
        return timed(lambda: predict(name), lists=1, pairs=len(lists[name]))

    return "lists", {f"{name} CrossEncoder": functools.partial(run, name) for name in lists}


MODES = {"plain": plain, "select": select, "embed": embed, "rerank": rerank}


def prepare(mode: str, settings: Settings) -> tuple[dict[str, Any], Variants]:
    torch.manual_seed(0)
    np.random.seed(0)
    transformers.utils.logging.disable_progress_bar()
    unit, variants = MODES[mode](settings)
    names = ("torch", "transformers", "sentence-transformers")
    found = {
        "unit": unit,
        "threads": torch.get_num_threads(),
        "versions": {name: importlib.metadata.version(name) for name in names},
    }
    return found, variants


if __name__ == "__main__":
    answer(prepare)
