"""A gRPC client for TensorFlow Serving; needs tensorflow-serving-api.

    python experiments/serving/client.py embed "Where is my parcel?" "It left today."
    python experiments/serving/client.py match --context "Where is my parcel?" \
        --candidates "It left today." "I drink it black."

Prints JSON: embeddings `[sentences, dim]`, or similarities `[candidates]`.
"""

import argparse
import json
import sys

import grpc
import numpy as np
import tensorflow as tf
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def make_request(model: str, signature: str, **inputs: np.ndarray) -> predict_pb2.PredictRequest:
    """Makes a request to the newest version of a model."""
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.model_spec.signature_name = signature
    for name, array in inputs.items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array))
    return request


def embed(sentences: list[str], model: str = "dcse") -> predict_pb2.PredictRequest:
    """Makes a request for embeddings."""
    return make_request(model, "serving_default", sentences=np.array(sentences, object))


def match(
    context: list[str], candidates: list[str], turns: int = 0, model: str = "dcse"
) -> predict_pb2.PredictRequest:
    """Makes a request for the similarities of candidates to one context.

    Args:
        context: the turns of the context; the last `turns` of them are sent.
        candidates: the responses.
        turns: number of turns per request. A server that batches needs the same in all requests;
            shorter contexts are padded with empty strings, which stand for no turn. 0 sends all.
        model: name of the model on the server.
    """
    context = context[-turns:] + [""] * (turns - len(context))
    rows = {"context": [context], "candidates": [candidates]}
    return make_request(model, "match", **{k: np.array(v, object) for k, v in rows.items()})


def ask(address: str, request: predict_pb2.PredictRequest, timeout_s: float = 10.0) -> np.ndarray:
    """Sends a request; returns the signature's only output."""
    with grpc.insecure_channel(address) as channel:
        stub = prediction_service_pb2_grpc.PredictionServiceStub(channel)
        (output,) = stub.Predict(request, timeout_s).outputs.values()
    return tf.make_ndarray(output)


def parse_arguments(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--address", default="localhost:8500", help="default: %(default)s")
    parser.add_argument("--model", default="dcse", help="default: %(default)s")
    jobs = parser.add_subparsers(dest="job", required=True)
    jobs.add_parser("embed").add_argument("sentences", nargs="+")
    matching = jobs.add_parser("match")
    matching.add_argument("--context", nargs="+", required=True)
    matching.add_argument("--candidates", nargs="+", required=True)
    matching.add_argument("--turns", type=int, default=0, help="turns per request; 0: all")
    return parser.parse_args(arguments)


def main() -> None:
    args = parse_arguments(sys.argv[1:])
    if args.job == "embed":
        found = ask(args.address, embed(args.sentences, args.model))
    else:
        request = match(args.context, args.candidates, args.turns, args.model)
        found = ask(args.address, request)[0]
    print(json.dumps(found.tolist()))


if __name__ == "__main__":
    main()
