"""What all tables of Postgres have in common."""

import enum
from datetime import datetime
from typing import Any, ClassVar

from sqlalchemy import ARRAY, DateTime, Enum, MetaData, Text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import DeclarativeBase


class Base(DeclarativeBase):
    # Every constraint has a name, so that a migration can change it.
    metadata = MetaData(
        naming_convention={
            "ix": "ix_%(table_name)s_%(column_0_N_name)s",
            "uq": "uq_%(table_name)s_%(column_0_N_name)s",
            "ck": "ck_%(table_name)s_%(constraint_name)s",
            "fk": "fk_%(table_name)s_%(referred_table_name)s",
            "pk": "pk_%(table_name)s",
        }
    )
    type_annotation_map: ClassVar = {
        str: Text(),
        datetime: DateTime(timezone=True),
        dict[str, Any]: JSONB(none_as_null=True),
        list[Any]: JSONB(none_as_null=True),
        list[str]: ARRAY(Text()),
        # The value, as Redis and the API spell it, not the member's name; text, because a native enum cannot lose a
        # member.
        enum.Enum: Enum(
            enum.Enum,
            native_enum=False,
            length=16,
            values_callable=lambda members: [member.value for member in members],
        ),
    }
