"""Projects: who sees what. Only administrators of the project ``default`` get here."""

from fastapi import APIRouter

from api import schemas
from api.answers import moment
from api.deps import OperatorKey, TheGateway

router = APIRouter(prefix="/v1/projects", tags=["projects"])


@router.get("")
def list_projects(gateway: TheGateway, _caller: OperatorKey) -> schemas.Projects:
    found = gateway.store().list_projects()
    return schemas.Projects(projects=[schemas.Project(name=one.name, created_at=moment(one.created_at)) for one in found])


@router.post("", status_code=201)
def create_project(gateway: TheGateway, _caller: OperatorKey, body: schemas.ProjectBody) -> schemas.Project:
    made = gateway.store().create_project(body.name)
    return schemas.Project(name=made.name, created_at=moment(made.created_at))
