"""Whom a connection counts for."""

import pytest
from pydantic import ValidationError

from api.server.connections import sender_of
from smore.process.settings import ApiSettings


@pytest.mark.parametrize(
    ("address", "sender"),
    [
        ("192.0.2.7", "192.0.2.7"),
        ("::ffff:192.0.2.7", "192.0.2.7"),
        ("2001:db8:0:1::7", "2001:db8:0:1::/64"),
        ("2001:db8:0:1:ffff:ffff:ffff:ffff", "2001:db8:0:1::/64"),
        ("2001:db8:0:2::7", "2001:db8:0:2::/64"),
        ("fe80::7%eth0", "fe80::/64"),
        ("10.0.0.7", ""),
        ("::ffff:10.0.0.7", ""),
        ("10.0.0.8", "10.0.0.8"),
        ("fd00::1:2", ""),
    ],
)
def test_a_sender_is_an_address_or_a_network_and_a_proxy_is_none(address: str, sender: str) -> None:
    proxies = ApiSettings(proxies=("10.0.0.7", "fd00::/64")).proxies
    assert sender_of(address, proxies) == sender


@pytest.mark.parametrize("proxy", ["proxy.example", "10.0.0.7/8", "10.0.0.256", ""])
def test_a_proxy_that_is_no_address_is_told_at_the_start(proxy: str) -> None:
    with pytest.raises(ValidationError):
        ApiSettings(proxies=(proxy,))
