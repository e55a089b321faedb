"""What a leader keeps for the next one, as JSON: a record for each function."""

from typing import Final

import msgspec

from smore.domain.learned import Learned

encode_learned: Final = msgspec.json.Encoder().encode
#: Raises ValueError.
decode_learned: Final = msgspec.json.Decoder(Learned).decode
