"""What a leader keeps for the next one, as JSON: a record for each function, and for the trainings of a GPU instance."""

from typing import Final

import msgspec

from smore.domain.learned import Learned, LearnedCost

encode_learned: Final = msgspec.json.Encoder().encode
#: Raises ValueError.
decode_learned: Final = msgspec.json.Decoder(Learned).decode
#: By id of the training. Raises ValueError.
decode_costs: Final = msgspec.json.Decoder(dict[str, LearnedCost]).decode
