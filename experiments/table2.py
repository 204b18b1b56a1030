"""Table 2 of the paper on your data: every baseline, DialogueCSE, and what goes beyond the paper.

    PYTHONPATH=. python experiments/table2.py --work_dir=FOLDER --shared_data=FOLDER --seeds 0 1 2
    PYTHONPATH=. python experiments/table2.py --work_dir=FOLDER --size=paper \
        --ecd_train train.txt --ecd_retrieval select.txt --ecd_sts sts.txt

Every trained row starts from one adapted encoder. Rows are measured on the reporting half of each
set; the other tables and figures compare settings on the choosing half. What is done already is
used again; a start that was cut off goes on with the same command.
"""

from experiment import Experiment, make_parser, run
from paper import TABLE_2
from rows import RECOMMENDED, ROWS, Variant

from dcse_tf.evaluation.job import REPORT


def main() -> None:
    parser = make_parser(__doc__)
    names = [row.name for row in ROWS]
    parser.add_argument("--rows", nargs="+", choices=names, default=names, help="only these")
    parser.add_argument(
        "--against", choices=names, default=RECOMMENDED.name, help="row to compare the others with"
    )
    options = parser.parse_args()
    experiment = Experiment(
        name="table2",
        title="Table 2: models on semantic retrieval and dialogue STS",
        variants=[Variant(row) for row in ROWS if row.name in options.rows],
        axis="",
        against=options.against,
        paper=lambda variant: TABLE_2.get(variant.row.name, {}),
        half=REPORT,
    )
    run(experiment, options)


if __name__ == "__main__":
    main()
