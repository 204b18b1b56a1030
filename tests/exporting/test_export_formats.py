"""The registry of formats, and the options that contradict each other."""

import pytest

import dcse_tf
from dcse_tf.errors import InputError
from dcse_tf.exporting.export_formats import FORMATS, ExportOptions


@pytest.fixture
def token_list():
    """A format from outside: what an encoder reads, one token a line."""

    def write(folder, encoder, options):
        lines = "".join(f"{token}\n" for token in encoder.vocabulary.tokens)
        (folder / "tokens.txt").write_text(lines)
        if options.unit_norm:
            raise InputError("`unit_norm`: tokens have no length")
        return {"tokens": str(len(encoder.vocabulary.tokens))}

    usage = "    open(PREFIX + 'FOLDER')\n"
    dcse_tf.register_export("token_list", "what it reads", write_encoder=write, usage=usage)
    yield
    del FORMATS["token_list"]


@pytest.mark.slow
def test_a_format_from_outside_is_one_registration(token_list, bert, rerankers, tmp_path):
    given = {"format": "token_list", "prefix": "my "}
    folder = dcse_tf.export(run_dir=bert, output_dir=tmp_path / "out", **given)
    assert {path.name for path in folder.iterdir()} == {"tokens.txt", "model_card.md"}
    card = (folder / "model_card.md").read_text()
    assert "| tokens | 60 |" in card
    assert "open('my ' + 'FOLDER')" in card
    with pytest.raises(InputError, match="`unit_norm`"):
        dcse_tf.export(run_dir=bert, output_dir=tmp_path / "no", unit_norm=True, **given)
    with pytest.raises(InputError, match=r"`format`=token_list: .* is a re-ranker"):
        dcse_tf.export(run_dir=rerankers[False], output_dir=tmp_path / "no", format="token_list")
    assert not (tmp_path / "no").exists()
    with pytest.raises(ValueError, match="token_list"):
        dcse_tf.register_export("token_list", "again")


@pytest.mark.parametrize(
    ("settings", "option"),
    [
        ({"format": "pickle"}, "format"),
        ({"quantize": "int8"}, "quantize"),
        ({"data_dir": "data"}, "data_dir"),
        ({"format": "static"}, "format"),
    ],
)
def test_options_that_contradict_each_other_are_refused(settings, option):
    with pytest.raises(dcse_tf.OptionError, match=f"^`{option}`"):
        ExportOptions(run_dir="run", output_dir="out", **settings)
