"""Checks the documents of an image with the libraries of those who specify them. Arguments: the image's directory, and
the public key of its builder."""

import base64
import json
import sys

from cryptography.hazmat.primitives.serialization import load_pem_public_key
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator
from google.protobuf.json_format import Parse
from in_toto_attestation.predicates.provenance.v1 import provenance_pb2
from in_toto_attestation.v1 import statement_pb2
from in_toto_attestation.v1.statement import Statement
from securesystemslib.dsse import Envelope
from securesystemslib.signer import SSlibKey
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document


def text(path):
    with open(path, encoding="utf-8") as file:
        return file.read()


directory, key = sys.argv[1:]
problems = validate_full_spdx_document(parse_file(f"{directory}/sbom.spdx.json"))
assert not problems, problems[:5]
problem = JsonStrictValidator(SchemaVersion.V1_6).validate_str(text(f"{directory}/sbom.cdx.json"))
assert problem is None, problem

envelope = json.loads(text(f"{directory}/provenance.dsse.json"))
payload = base64.b64decode(envelope["payload"])
Statement.copy_from_pb(Parse(payload, statement_pb2.Statement())).validate()
predicate = json.dumps(json.loads(payload)["predicate"])
assert Parse(predicate, provenance_pb2.Provenance()).run_details.builder.id
public = load_pem_public_key(text(key).encode())
public = SSlibKey.from_crypto(public, keyid=envelope["signatures"][0]["keyid"])
assert Envelope.from_dict(envelope).verify([public], 1)
print("valid")
