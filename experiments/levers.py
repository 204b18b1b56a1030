"""The recommended preset on your data, one setting changed at a time: what does each bring?

    PYTHONPATH=. python experiments/levers.py --work_dir=FOLDER --shared_data=FOLDER

It is measured on the choosing half of each set; table 2 measures on the other what you pick.

With the work folder of table 2, encoder and preset are used again. Longer masked language modelling
(--mlm_steps) and warm starts (--token_vectors) change the encoder: give each a work folder of its
own. Plain cosine alone is a row of table 2; temperature, negatives and turns on each side are
tables 3 and 4 and figure 2.
"""

from experiment import Experiment, make_parser, run
from rows import RECOMMENDED, Variant

_LEVERS = (
    ("--cosine_weight=0",),
    ("--cosine_weight=0.5",),
    ("--center_tokens",),
    ("--center_tokens", "--cosine_weight=0.5"),
    ("--negatives=all",),
    ("--context_side=before",),
    ("--batch_form=unique",),
    ("--learning_rate=1e-4",),
    ("--steps=75",),
    ("--steps=300",),
    ("--freeze_layers=-1", "--freeze_embeddings"),
)


def main() -> None:
    parser = make_parser(__doc__)
    parser.add_argument(
        "--lever",
        action="append",
        default=[],
        metavar="FLAGS",
        help="flags of train, in quotes, instead of those that are tried without this flag",
    )
    options = parser.parse_args()
    levers = [tuple(words.split()) for words in options.lever] or _LEVERS
    experiment = Experiment(
        name="levers",
        title="The recommended preset, one setting changed at a time",
        variants=[Variant(RECOMMENDED), *(Variant(RECOMMENDED, flags=flags) for flags in levers)],
        axis="",
        against=RECOMMENDED.name,
        paper=lambda variant: {},
    )
    run(experiment, options)


if __name__ == "__main__":
    main()
