"""What ``kubectl kustomize`` makes of a folder, as far as ours and those that the documentation shows go."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

Document = dict[str, Any]

# So that a hash is never a word.
_NO_WORDS = str.maketrans("013ae", "ghkmt")
_KNOWN = {"apiVersion", "kind", "namespace", "resources", "configMapGenerator", "images"}


class KustomizeError(ValueError):
    """A folder that kustomize would refuse, or that takes more than is known here."""


def build(folder: Path) -> list[Document]:
    """Return the manifests of a folder, in the order in which it names them.

    Raises:
        KustomizeError: If a file is missing, two manifests are one, what is to be replaced is not there, or a
            field is not known.
    """
    documents = _collected(folder)
    renamed = {}
    for document in documents:
        if document.pop("generated", False):
            metadata = document["metadata"]
            plain, metadata["name"] = metadata["name"], f"{metadata['name']}-{_hash(document)}"
            renamed[plain] = metadata["name"]
    for pod in _pods(documents):
        for volume in pod.get("volumes", []):
            if (config := volume.get("configMap")) is not None:
                config["name"] = renamed.get(config["name"], config["name"])
    return documents


def _collected(folder: Path) -> list[Document]:
    """Return the manifests before the generated ones get their names."""
    file = folder / "kustomization.yaml"
    if not file.is_file():
        raise KustomizeError(f"{folder} has no kustomization.yaml")
    kustomization = yaml.safe_load(file.read_text(encoding="utf-8"))
    if unknown := kustomization.keys() - _KNOWN:
        raise KustomizeError(f"{file}: {', '.join(sorted(unknown))} is not known here")
    documents: list[Document] = []
    for name in kustomization.get("resources", []):
        path = folder / name
        if path.is_dir():
            documents += _collected(path)
        elif path.is_file():
            documents += yaml.safe_load_all(path.read_text(encoding="utf-8"))
        else:
            raise KustomizeError(f"{file}: there is no {name}")
    for wanted in kustomization.get("configMapGenerator", []):
        _generate(documents, wanted, folder)
    named = [(document["kind"], document["metadata"]["name"]) for document in documents]
    if len(set(named)) < len(named):
        raise KustomizeError(f"{file}: two manifests have one kind and name")
    for document in documents:
        if "namespace" in kustomization:
            document["metadata"]["namespace"] = kustomization["namespace"]
    for image in kustomization.get("images", []):
        _rename(documents, image)
    return documents


def _generate(documents: list[Document], wanted: Document, folder: Path) -> None:
    if unknown := wanted.keys() - {"name", "behavior", "files"}:
        raise KustomizeError(f"configMapGenerator: {', '.join(sorted(unknown))} is not known here")
    if missing := [name for name in wanted["files"] if not (folder / name).is_file()]:
        raise KustomizeError(f"configMapGenerator: there is no {missing[0]}")
    data = {name: (folder / name).read_text(encoding="utf-8") for name in wanted["files"]}
    behavior = wanted.get("behavior", "create")
    if behavior == "create":
        metadata = {"name": wanted["name"]}
        document = {"apiVersion": "v1", "data": data, "kind": "ConfigMap", "metadata": metadata}
        documents.append(document | {"generated": True})
        return
    generated = [document for document in documents if document.get("generated")]
    old = [document for document in generated if document["metadata"]["name"] == wanted["name"]]
    if behavior != "replace" or len(old) != 1:
        raise KustomizeError(f"configMapGenerator: nothing to {behavior} is named {wanted['name']}")
    old[0]["data"] = data


def _rename(documents: list[Document], image: Document) -> None:
    for pod in _pods(documents):
        for container in pod["containers"]:
            name, _, tag = container["image"].partition(":")
            if name == image["name"]:
                container["image"] = f"{image.get('newName', name)}:{image.get('newTag', tag)}"


def _pods(documents: list[Document]) -> Iterator[Document]:
    for document in documents:
        if document["kind"] in {"Deployment", "Job"}:
            yield document["spec"]["template"]["spec"]


def _hash(document: Document) -> str:
    """Return the suffix of a generated ConfigMap's name, which kustomize makes of its content in Go's JSON."""
    # It looks for the name in the wrong place.
    hashed = {"data": document["data"], "kind": "ConfigMap", "name": ""}
    text = json.dumps(hashed, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return hashlib.sha256(text.encode()).hexdigest()[:10].translate(_NO_WORDS)
