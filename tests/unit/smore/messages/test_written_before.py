"""What the revision before wrote into Redis, byte for byte: this one reads it, and writes it the same way."""

import math

import msgspec
import pytest

from smore.domain.job import JobRequest
from smore.messages import commands, forecasts, overrides, reports, results, stream
from smore.messages.reasons import DryRunAnswer, Reasons, decode_answer, encode_answer, encode_reasons

EVENTS = {
    "9da16101a3702f6603a4696969690a1402a178a16ba1740500": stream.Arrived(
        1, "p/f", 3, "iiii", 10, 20, 2, "x", "k", "t", 5
    ),
    "97a16401a3702f66a1670b9192a46969696901a77b2276223a317d": stream.Dispatched(
        1, "p/f", "g", 11, [("iiii", 1)], '{"v":1}'
    ),
    "9fa17101a3702f6603a46969696901ab776f726b65725f6c6f7374a1670c0a1402a1780100": stream.Returned(
        1, "p/f", 3, "iiii", 1, "worker_lost", "g", 12, 10, 20, 2, "x", 1
    ),
    "dc0014a17401a3702f6603a4696969690101a9737563636565646564a26f6ba1670a140b0c0d02a16ba17407ad7b2276657273696f6e223a"
    "317d": stream.Settled(
        *(1, "p/f", 3, "iiii", 1, 1, "succeeded", "ok", "g", 10, 20, 11, 12, 13, 2, "k", "t", 7, '{"version":1}')
    ),
    "95a17201a16709a27b7d": stream.Reported(1, "g", 9, "{}"),
    "94a16301a3702f6605": stream.CatalogChanged(1, "p/f", 5),
    "98a16201a167a16a06a4646f776ecb3fe0000000000000cb3ff4000000000000": stream.Stepped(
        1, "g", "j", 6, "down", 0.5, 1.25
    ),
    "99a16b01a171a3702f660302140900": stream.Asked(1, "q", "p/f", 3, 2, 20, 9),
    "95a16e01a3702f660309": stream.Wanted(1, "p/f", 3, 9),
    "dc0016a17701a3702f6603a167a162a3622d3101a46f70656ea009010203000405060701cd080001": stream.Warmed(
        *(1, "p/f", 3, "g", "b", "b-1", 1, "open", "", 9, 1, 2, 3, 0, 4, 5, 6, 7, 1, 2048, 1)
    ),
}
COMMANDS = {
    "95a663616e63656c01a3702f66a46969696902": commands.Cancel(1, "p/f", "iiii", 2),
    "96a76f66666c6f616401a3702f660301c3": commands.Offload(1, "p/f", 3, 1, True),
    "96a77072657761726d01a3702f660302cb4023000000000000": commands.Prewarm(1, "p/f", 3, 2, 9.5),
    "94a972657370656369667901a3702f6603": commands.Respecify(1, "p/f", 3),
    "94a5666574636801a3702f6603": commands.Fetch(1, "p/f", 3),
    "dc0010a973746172745f6a6f6201a16aa170a16ede0012a46172677691a161a5636f756e7401a46770757390a664657669"
    "6365a0aa6d656d6f72795f6d6962cb4050000000000000a8776f726b6c6f6164a177a6627564676574cb3fd00000000000"
    "00aa697465726174696f6e735aaa6475726174696f6e5f73cb0000000000000000a8726573746172747300a76772616365"
    "5f73cb4014000000000000a77365637265747381a153a173a774727573746564c3a3637764a22f64a57368617265cb3fe0"
    "000000000000ad6d6963726f5f6261746368657390a26279c0a6756e6c657373a672656675736581a145a1310201020001"
    "92a167a168010291a168": commands.StartJob(
        1,
        "j",
        "p",
        "n",
        JobRequest(
            argv=["a"],
            gpus=[],
            workload="w",
            budget=0.25,
            memory_mib=64.0,
            iterations=90,
            grace_s=5.0,
            secrets={"S": "s"},
            trusted=True,
            cwd="/d",
            share=0.5,
            micro_batches=[],
        ),
        {"E": "1"},
        *(2, 1, 2, 0, 1, ["g", "h"], 1, 2, ["h"]),
    ),
    "9caa6174746163685f6a6f6201a16aa170a16e0708a162c3a177cb3fd0000000000000c3": commands.AttachJob(
        1, "j", "p", "n", 7, 8, "b", True, "w", 0.25, True
    ),
    "93a9616c6c6f775f6a6f6201a16a": commands.AllowJob(1, "j"),
    "95a873746f705f6a6f6201a16a02cb4014000000000000": commands.StopJob(1, "j", 2, 5.0),
    "94aa666f726765745f6a6f6201a16a02": commands.ForgetJob(1, "j", 2),
    "93b064726f705f636865636b706f696e747301a16a": commands.DropCheckpoints(1, "j"),
    "95aa7365745f62756467657401a16acb3fd0000000000000cb3fe0000000000000": commands.SetBudget(1, "j", 0.25, 0.5),
    "93a87468726f74746c6501cb3fe0000000000000": commands.Throttle(1, 0.5),
}
#: Commands from before they had their last fields.
SHORT_COMMANDS = {
    "94aa7365745f62756467657401a16acb3fd0000000000000": commands.SetBudget(1, "j", 0.25),
    "93a873746f705f6a6f6201a16a": commands.StopJob(1, "j"),
}
#: A start as it was written before a command carried the whole request.
OLD_START = "9aa973746172745f6a6f6201a16aa170a16e91a16181a145a131a177cb3fd0000000000000cb4050000000000000"
REPORT = (
    b'{"version":1,"gpu":"g","boot":"b","at":1.5,"kind":"cpu","device":"d","sharing_mode":"solo","slots":2,'
    b'"memory_total_mib":64.0,"memory_used_mib":8.0,"utilisation":0.5,"utilisation_counter":"none",'
    b'"function_utilisation":0.25,"counters":{},"health":"","running":1,"warm":[{"function":"p/f","revision":3,'
    b'"state":"idle","memory_mib":4.0,"pid":9,"idle_s":0.0,"longest_s":0.0,"held":false}],"parked":[],"jobs":[{"id":"j","project":"p",'
    b'"state":"running","pid":7,"memory_mib":1.0,"reserve_mib":0.0,"iterations":9,"window_s":0.0,"solo_s":0.0,'
    b'"solo_count":0,"shared_s":0.0,"shared_count":0,"exit_code":null,"workload":"","budget":0.1,"share":0.0,"measured":true,'
    b'"suspended":false,"reason":"","unseen":"","windows":[{"start":1.0,"end":2.0,"before_s":0.1,"before_n":3,"closed_s":0.2,'
    b'"closed_n":4,"closed_sd":0.01,"after_s":0.1,"after_n":3}],"loss":null,"loss_low":null,"loss_high":null,'
    b'"loss_windows":0,"recent_s":0.0,"recent_n":0,"recent_sd":0.0,"closed_s":0.0,"closed_n":0,"closed_sd":0.0,"attempt":2,"rank":1,"world":2,'
    b'"checkpoint_iterations":5,"started_at":1.5,"length":90,"alone_s":0.25,'
    b'"alone_n":40,"alone_se":0.01,"beside":["h"],"beside_since":3.5,"beside_s":0.3,"beside_n":20,"beside_se":0.0,'
    b'"held_s":1.5,"guest":true,"held":0.75,"pair_loss":0.1,"pair_loss_low":0.05,"pair_loss_high":0.15,'
    b'"pair_windows":8}],'
    b'"quarantined":["p/f@2"],"duty":1.0,"closed":false,"closed_until":0.0,"strangers":[{"pid":5,"start":6,'
    b'"memory_mib":2.0,"name":"x"}],"node":"n","address":"10.0.0.7","visible":"GPU-1","aged":["j"],"context_mib":472.5}'
)
EXECUTION = (
    b'{"version":1,"boot":"b","cold":true,"load_ms":{"import":1.5},"run_ms":2.5,"batch":2,"rows":3,"co":["p/g"],'
    b'"jobs":["j"],"pid":7,"device":"d","sharing_mode":"solo"}'
)
OVERRIDE = b'{"function":"p/f","boost":2.0,"boost_until":9.0,"gpus":["g"],"pin_until":null}'
PREWARM = (
    b'{"version":1,"at":1.0,"rule":"r","on":true,"share":0.5,"forecasts":3,"jumps":0,"functions":[{"function":"p/f",'
    b'"revision":1,"mode":"m","source":"s","silence":"","wanted":1,"loaded":1,"unmet":false,"load_s":0.5,'
    b'"holds":[[1.0,null,2]],"parked":0,"host_s":0.0}]}'
)
COUNTED = (
    "85a6666f726d617401a766726f6d5f6174cb404e000000000000a56b6e6f776e920001a6636f756e747381a3702f66920002a66c6573736f6e"
    "01"
)


@pytest.mark.parametrize("raw", EVENTS)
def test_events(raw: str) -> None:
    assert stream.decode(bytes.fromhex(raw)) == EVENTS[raw]
    assert stream.encode(EVENTS[raw]).hex() == raw


@pytest.mark.parametrize("kind", [stream.Arrived, stream.Returned, stream.Asked])
def test_events_from_before_they_had_a_class(kind: type[stream.Entry]) -> None:
    ((raw, event),) = ((bytes.fromhex(raw), event) for raw, event in EVENTS.items() if isinstance(event, kind))
    assert stream.decode(bytes([raw[0] - 1]) + raw[1:-1]) == event


def test_every_event_is_here() -> None:
    assert {type(event) for event in EVENTS.values()} == set(stream.Entry.__subclasses__())
    assert {type(command) for command in COMMANDS.values()} == set(commands.Command.__subclasses__())


@pytest.mark.parametrize("raw", COMMANDS)
def test_commands(raw: str) -> None:
    assert commands.decode_command(bytes.fromhex(raw)) == COMMANDS[raw]
    assert commands.encode_command(COMMANDS[raw]).hex() == raw


@pytest.mark.parametrize("raw", SHORT_COMMANDS)
def test_commands_with_fewer_fields(raw: str) -> None:
    assert commands.decode_command(bytes.fromhex(raw)) == SHORT_COMMANDS[raw]


def test_a_start_in_the_form_before_is_passed_over_and_sent_again() -> None:
    assert commands.decode_command(bytes.fromhex(OLD_START)) is None


def test_reports_results_and_states() -> None:
    assert reports.encode_report(reports.decode_report(REPORT)) == REPORT
    assert results.encode_execution(results.decode_execution(EXECUTION)) == EXECUTION
    assert overrides.encode_override(overrides.decode_override(OVERRIDE)) == OVERRIDE
    assert forecasts.encode_prewarm_report(forecasts.decode_prewarm_report(PREWARM)) == PREWARM
    assert forecasts.encode(forecasts.decode_counted(bytes.fromhex(COUNTED))).hex() == COUNTED
    result = bytes.fromhex("99a37261770102c3c4020001a0ab793a55494e54383a312c32a0a0")
    # From before it had its last field.
    assert results.decode_result(b"\x98" + result[1:-1]) == results.decode_result(result)
    assert results.encode_result(results.decode_result(result)) == result
    without_traceback = bytes.fromhex("97a37261770102c3c4020001a0ab793a55494e54383a312c32")
    assert results.decode_result(without_traceback) == results.decode_result(result)


DECISION = (
    b'{"v":1,"policy":"smore","table":7,"seed":3,"priority":0.1235,"schedule_us":12,"candidates":[{"gpu":"g","warm":true,'
    b'"delay_s":0.0,"run_s":0.25,"finish_at":7.0,"impact":0.0,"function_degradation":0.1,'
    b'"function_degradation_upper":0.2,"training_degradation":0.0,"training_degradation_upper":0.0,"known":true,'
    b'"refusal":null}],"refused":{"busy":1},"shadow":null'
)


@pytest.mark.parametrize("end", [b"}", b',"unforeseen":"first"}'])
def test_decisions(end: bytes) -> None:
    decision = msgspec.json.decode(DECISION + end, type=Reasons)
    assert (decision.priority, decision.candidates[0].warm, decision.refused) == (0.1235, True, {"busy": 1})
    assert encode_reasons(decision) == DECISION + end


def test_numbers_that_are_not_finite_are_null() -> None:
    assert b'"start_at":null' in encode_answer(DryRunAnswer(start_at=math.nan, finish_at=math.inf))


def test_an_answer_of_the_leader_before() -> None:
    answer = decode_answer(
        b'{"version":1,"at":5.0,"gpu":"g","cold":true,"start_at":6.0,"finish_at":7.0,"earliest_deadline_at":null,'
        b'"finish_s":null,"reasons":{"v":1,"policy":"smore","table":7,"seed":3,"priority":0.1,"schedule_us":0,'
        b'"candidates":[{"gpu":"g","warm":false,"delay_s":1.5,"run_s":0.25,"finish_at":7.0,"impact":0.0,'
        b'"function_degradation":0.1,"function_degradation_upper":0.2,"training_degradation":0.0,'
        b'"training_degradation_upper":0.0,"known":true,"refusal":null}],"refused":{"busy":1},"shadow":null,'
        b'"unforeseen":"first"}}'
    )
    assert (answer.known, answer.gpu, answer.cold, answer.finish_at) == (True, "g", True, 7.0)
    assert (answer.reasons.candidates[0].delay_s, answer.reasons.refused) == (1.5, {"busy": 1})
    assert decode_answer(b'{"version":1,"known":false,"at":5.0}').known is False
    with pytest.raises(msgspec.DecodeError):
        decode_answer(b"[]")
