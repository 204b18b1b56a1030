"""Other libraries' ways of embedding, each in its own environment: see backends.py.

    python tier_peer.py MODE

See peer_loop.py for the protocol. Settings of every mode: model (a folder of sentence-transformers'
form), sentences (the file that is timed), threads; optionally texts (a file to embed) with vectors
(the folder for each variant's embeddings of it), and folder (where exports are written). A variant
that cannot be loaded is left out, with the reason. It does not use dcse_tf.
"""

import functools
import importlib.metadata
import json
import pathlib
from collections.abc import Callable
from typing import Any

import numpy as np
from peer_loop import Settings, Variants, answer, timed

# Texts -> embeddings [texts, dim].
Encode = Callable[[list[str]], np.ndarray]
PACKAGES = ("sentence-transformers", "torch", "onnxruntime", "openvino", "fastembed", "model2vec")
CALIBRATION = "calibration"


def read_texts(path: str) -> list[str]:
    return pathlib.Path(path).read_text(encoding="utf-8").split("\n")[:-1]


def sentence_transformer(
    settings: Settings, batch: int = 32, bfloat16: bool = False, folder: str = "", **options: Any
) -> Encode:
    """sentence-transformers' `encode`, with any of its backends.

    Args:
        settings: the settings of the mode.
        batch: the batch size; 32 is the library's default.
        bfloat16: whether to compute in bfloat16.
        folder: folder to save the model to, in its backend's form; "" not to save it.
        options: arguments of SentenceTransformer.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(settings["threads"])
    model = SentenceTransformer(options.pop("model", settings["model"]), device="cpu", **options)
    if folder:
        model.save_pretrained(folder)
    if bfloat16:
        model.bfloat16()

    def encode(texts: list[str]) -> np.ndarray:
        # NumPy has no bfloat16.
        found = model.encode(
            texts, batch_size=batch, show_progress_bar=False, convert_to_numpy=False
        )
        return torch.stack(found).float().numpy()

    return encode


def _onnx_options(settings: Settings, **more: Any) -> dict[str, Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = settings["threads"]
    provider = {"provider": "CPUExecutionProvider", "session_options": options}
    return {"backend": "onnx", "model_kwargs": {**provider, **more}}


def onnx(settings: Settings) -> Encode:
    folder = str(pathlib.Path(settings["folder"], "onnx"))
    return sentence_transformer(settings, folder=folder, **_onnx_options(settings, export=True))


def onnx_int8(settings: Settings) -> Encode:
    from sentence_transformers import SentenceTransformer, export_dynamic_quantized_onnx_model

    folder = str(pathlib.Path(settings["folder"], "onnx"))
    model = SentenceTransformer(folder, device="cpu", **_onnx_options(settings))
    export_dynamic_quantized_onnx_model(model, "avx2", folder)
    options = _onnx_options(settings, file_name="onnx/model_quint8_avx2.onnx")
    return sentence_transformer(settings, model=folder, **options)


def _openvino_options(settings: Settings, **more: Any) -> dict[str, Any]:
    threads = {"ov_config": {"INFERENCE_NUM_THREADS": settings["threads"]}}
    return {"backend": "openvino", "model_kwargs": {**threads, **more}}


def openvino(settings: Settings) -> Encode:
    folder = str(pathlib.Path(settings["folder"], "openvino"))
    options = _openvino_options(settings, export=True)
    return sentence_transformer(settings, folder=folder, **options)


def openvino_int8(settings: Settings) -> Encode:
    """Calibrates on the timed sentences, because the library would download its own."""
    from sentence_transformers import SentenceTransformer, export_static_quantized_openvino_model

    folder = pathlib.Path(settings["folder"], "openvino")
    calibration = pathlib.Path(settings["folder"], CALIBRATION)
    calibration.mkdir()
    lines = [json.dumps({"text": text}) + "\n" for text in read_texts(settings["sentences"])]
    (calibration / "train.jsonl").write_text("".join(lines), encoding="utf-8")
    export_static_quantized_openvino_model(
        SentenceTransformer(str(folder), device="cpu", **_openvino_options(settings)),
        None,
        str(folder),
        dataset_name=str(calibration),
        dataset_config_name="default",
        dataset_split="train",
        column_name="text",
    )
    file = "openvino/openvino_model_qint8_quantized.xml"
    options = _openvino_options(settings, file_name=file)
    return sentence_transformer(settings, model=str(folder), **options)


def fastembed(settings: Settings) -> Encode:
    """fastembed, on the ONNX file that sentence-transformers exported."""
    from fastembed import TextEmbedding
    from fastembed.common.model_description import ModelSource, PoolingType

    folder = pathlib.Path(settings["folder"], "onnx")
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    pooling = json.loads((folder / "1_Pooling/config.json").read_text(encoding="utf-8"))
    cls = pooling.get("pooling_mode_cls_token") or pooling.get("pooling_mode") == "cls"
    TextEmbedding.add_custom_model(
        "local/model",
        PoolingType.CLS if cls else PoolingType.MEAN,
        normalization=True,
        sources=ModelSource(url="file:///"),  # a source is required; nothing is fetched
        dim=config["hidden_size"],
        model_file="onnx/model.onnx",
    )
    model = TextEmbedding(
        "local/model",
        threads=settings["threads"],
        providers=["CPUExecutionProvider"],
        specific_model_path=str(folder),
    )
    return lambda texts: np.stack(list(model.embed(texts)))


def model2vec(settings: Settings, pca_dims: int | None) -> Encode:
    from model2vec.distill import distill

    return distill(settings["model"], pca_dims=pca_dims, device="cpu").encode


MODES: dict[str, dict[str, Callable[[Settings], Encode]]] = {
    "torch": {
        "sentence-transformers": sentence_transformer,
        "sentence-transformers, batches of 128": functools.partial(sentence_transformer, batch=128),
    },
    "optimum": {
        "sentence-transformers ONNX": onnx,
        "sentence-transformers ONNX int8": onnx_int8,
        "sentence-transformers OpenVINO": openvino,
        "sentence-transformers OpenVINO int8": openvino_int8,
    },
    "fastembed": {"fastembed": fastembed},
    "model2vec": {
        "model2vec, 256 dimensions": functools.partial(model2vec, pca_dims=256),
        "model2vec without PCA": functools.partial(model2vec, pca_dims=None),
    },
}
# bfloat16 is not compared in backends.py: CPUs without instructions for it are many times slower.
MODES["encode"] = {
    **MODES["torch"],
    "sentence-transformers bfloat16": functools.partial(sentence_transformer, bfloat16=True),
}


def find_versions() -> dict[str, str]:
    installed = {each.name: each.version for each in importlib.metadata.distributions()}
    return {name: installed[name] for name in PACKAGES if name in installed}


def prepare(mode: str, settings: Settings) -> tuple[dict[str, Any], Variants]:
    sentences = read_texts(settings["sentences"])
    variants, left_out = {}, {}
    for name, load in MODES[mode].items():
        try:
            encode = load(settings)
            encode(sentences[: len(sentences) // 10])  # warm-up
            if "vectors" in settings:
                np.save(
                    pathlib.Path(settings["vectors"], f"{name}.npy"),
                    encode(read_texts(settings["texts"])),
                )
        except Exception as error:  # an error of one library must not stop the others
            left_out[name] = f"{type(error).__name__}: {error}"
            continue
        variants[name] = functools.partial(
            timed, functools.partial(encode, sentences), sentences=len(sentences)
        )
    return {"unit": "sentences", "left_out": left_out, "versions": find_versions()}, variants


if __name__ == "__main__":
    answer(prepare)
