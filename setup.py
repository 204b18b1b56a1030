"""Packaging of dcse_tf."""

import pathlib
import re

from setuptools import find_packages, setup

ROOT = pathlib.Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (ROOT / "dcse_tf/__init__.py").read_text(), re.MULTILINE
)
assert VERSION

# What only some jobs need: `dcse_tf.errors.require` says which extra to install.
OPTIONAL = {
    "chinese": ["jieba>=0.42.1,<0.43"],
    "discover": ["scikit-learn>=1.7,<2"],
    "onnx": ["onnx>=1.18,<2", "onnxruntime>=1.20,<2"],
    "parquet": ["pyarrow>=20,<30"],
    "plots": ["matplotlib>=3.9,<4"],
    "search": ["faiss-cpu>=1.15,<2"],
    "spark": ["pyspark>=4.0,<5"],
    "server": ["fastapi>=0.165,<1", "uvicorn>=0.54,<1"],
    "vectors": ["gensim>=4.4,<5"],
}
# tensorflow-text, and with it training and all that runs a graph, has wheels for these only.
# Elsewhere, ONNX and static exports can be used.
GRAPH = (
    'python_version < "3.14" and (sys_platform == "linux" or '
    '(sys_platform == "darwin" and platform_machine == "arm64"))'
)
ALL = [requirement for requirements in OPTIONAL.values() for requirement in requirements]

setup(
    name="dcse_tf",
    version=VERSION[1],
    description="DialogueCSE in TensorFlow 2 and Keras 3: sentence embeddings from dialogues",
    long_description=(ROOT / "README.md").read_text(encoding="utf-8"),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=[*find_packages(include=["dcse_tf", "dcse_tf.*"]), "dcse_tf.flags"],
    # The presets, which stand at the top of the repository and inside the installed package.
    package_dir={"dcse_tf.flags": "flags"},
    package_data={
        "dcse_tf": ["py.typed", "__init__.pyi"],
        "dcse_tf.discovery": ["templates/*.j2"],
        "dcse_tf.exporting": ["templates/*.j2"],
        "dcse_tf.inspecting": ["templates/*.j2"],
        "dcse_tf.flags": ["*.flags", "*/*.flags"],
    },
    entry_points={"console_scripts": ["dcse = dcse_tf.cli.commands:main"]},
    python_requires=">=3.11",
    install_requires=[
        "absl-py>=2.0,<3",
        "filelock>=4.2,<5",
        "huggingface_hub>=1.0,<3",
        "Jinja2>=3.1,<4",
        f"keras>=3.15,<3.16; {GRAPH}",
        f"keras-hub>=0.32,<0.33; {GRAPH}",
        "numpy>=2.0,<3",
        "protobuf>=6.31,<8",
        "rank-bm25>=0.2.2,<0.3",
        "safetensors>=0.5,<1",
        "scipy>=1.15,<2",
        "sentencepiece>=0.2,<0.3",
        "tensorboard>=2.20,<3",
        f"tensorflow>=2.21,<2.22; {GRAPH}",
        f"tensorflow-text>=2.21,<2.22; {GRAPH}",
        "tokenizers>=0.20,<1",
        "tqdm>=4.66,<5",
        "transformers>=5.0,<6",
    ],
    extras_require={
        **OPTIONAL,
        "all": ALL,
        "demo": ["chitchat-dataset==0.9.0", *OPTIONAL["plots"]],
        "docs": ["furo>=2025.9", "myst-parser>=5,<6", "sphinx>=9,<10"],
        "test": [
            *ALL,
            "cohere>=7.0,<8",
            "hypothesis>=6.100,<7",
            "mypy>=1.18,<3",
            "openai>=3.0,<4",
            "pytest>=8.0,<10",
            "pytest-xdist>=3.6,<4",
            "ruff>=0.14,<0.18",
        ],
        "gpu": ["tensorflow[and-cuda]>=2.21,<2.22"],
    },
    classifiers=[
        "License :: OSI Approved :: Apache Software License",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3.11",
    ],
)
