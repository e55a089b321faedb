"""The whole content of a function.yaml, as the gateway takes it and as ``smore run`` does."""

from smore.definition.requirements import check_requirements
from smore.domain.function import FunctionSpec, parse_document


def read_document(raw: object) -> tuple[str, FunctionSpec]:
    """The name and the spec of a function.yaml, its requirements checked. Raises InvalidSpec that names the field."""
    name, spec = parse_document(raw)
    check_requirements(spec.requirements)
    return name, spec
