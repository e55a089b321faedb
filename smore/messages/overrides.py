"""Overrides of the policy by people, as JSON in the hash ``steering``."""

import msgspec

from smore.domain.override import Override

encode_override = msgspec.json.Encoder().encode
decode_override = msgspec.json.Decoder(Override).decode
