"""Write the dashboards to where Grafana takes them from: ``python -m deploy.grafana.dashboards``."""

from __future__ import annotations

from pathlib import Path

from deploy.grafana.dashboards import dataset, fleet, forwarding, service, sources

GENERATED = Path(__file__).parent.parent / "generated"


def texts() -> dict[str, str]:
    """Return every dashboard by the name of its file."""
    pages = [module.page() for module in (fleet, dataset, service, forwarding, sources)]
    return {f"{page.uid}.json": page.text() for page in pages}


def main() -> None:
    """Write all of them; a file of a dashboard that is no more is removed."""
    GENERATED.mkdir(exist_ok=True)
    written = texts()
    for old in GENERATED.glob("*.json"):
        if old.name not in written:
            old.unlink()
    for name, text in written.items():
        (GENERATED / name).write_text(text)


if __name__ == "__main__":
    main()
