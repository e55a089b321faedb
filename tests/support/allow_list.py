"""The contract type ``allow_list`` of import-linter: what a package may import is named, everything else is refused."""

import sys

from grimp import ImportGraph
from importlinter import Contract, ContractCheck, fields, output


class AllowList(Contract):
    """
    ``package`` may import itself, the standard library, and what stands in ``allowed``: packages of the project or
    outside libraries.

    ``apart``: packages inside ``package`` with lists of their own, which this one does not bind. An entry of
    ``allowed`` that nothing uses is an error too, so a list never says more than is true.
    """

    type_name = "allow_list"

    package = fields.ModuleField()
    allowed = fields.SetField(subfield=fields.StringField(), required=False, default=set())
    apart = fields.SetField(subfield=fields.StringField(), required=False, default=set())

    def check(self, graph: ImportGraph, verbose: bool) -> ContractCheck:
        package = str(self.package)
        allowed, apart = _names(self.allowed), _names(self.apart)
        refused: list[dict[str, object]] = []
        unused = set(allowed)
        for module in sorted(graph.modules):
            if not _within(module, package) or any(_within(module, name) for name in apart):
                continue
            for imported in sorted(graph.find_modules_directly_imported_by(module)):
                if _within(imported, package) and not any(_within(imported, name) for name in apart):
                    continue
                if imported.partition(".")[0] in sys.stdlib_module_names:
                    continue
                by = {name for name in allowed if _within(imported, name)}
                unused -= by
                if not by:
                    details = graph.get_import_details(importer=module, imported=imported)
                    refused.append(
                        {
                            "importer": module,
                            "imported": imported,
                            "lines": [detail["line_number"] for detail in details],
                        }
                    )
        return ContractCheck(kept=not refused and not unused, metadata={"refused": refused, "unused": sorted(unused)})

    def render_broken_contract(self, check: ContractCheck) -> None:
        for found in check.metadata["refused"]:
            lines = ", ".join(f"l.{number}" for number in found["lines"])
            output.print_error(f"{found['importer']} may not import {found['imported']} ({lines})", bold=False)
        for name in check.metadata["unused"]:
            output.print_error(f"{self.package} is allowed to import {name}, but does not", bold=False)


def _within(module: str, package: str) -> bool:
    return module == package or module.startswith(package + ".")


def _names(field: object) -> set[str]:
    """The names in a field of the contract: import-linter sets a set of strings in the place of the field."""
    assert isinstance(field, set)
    return {str(name) for name in field}
