"""Urls and addresses that no callback may reach, by their kind (J11)."""

from __future__ import annotations

from typing import Final

PUBLIC: Final = [
    "http://example.com", "https://example.com/", "HTTPS://EXAMPLE.COM/Path?q=1",
    "http://example.com:80/", "https://example.com:443/", "http://example.com:443/",
    "http://a.b.c.example.co.uk/x;y=z?a=b&c=%20", "http://8.8.8.8/", "http://93.184.216.34:80/x",
    "https://[2606:2800:220:1:248:1893:25c8:1946]/", "https://[2A00:1450:4001:0800::200E]:443/",
    "http://b\u00fccher.example.com/\u00e9", "http://xn--bcher-kva.example.com/",
    "http://_dmarc.example.com/", "http://1and1.com/", "http://0xabc.com/",
    "http://example.com?q", "http://1.2.3.4.example.com/", "http://example.com/@user",
    "http://example.com/?u=http://127.0.0.1/", "http://example.com//127.0.0.1/",
    "http://example.com/a:b",
]  # fmt: skip

# Each is public by Python 3.11's is_global, or looks harmless.
ADDRESSES: Final = {
    "this network": ["0.0.0.0", "0.1.2.3"],  # noqa: S104 # refused
    "loopback": ["127.0.0.1", "127.255.255.254", "::1"],
    "private": ["10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.0.1"],
    "shared (CGNAT)": ["100.64.0.1", "100.127.255.255"],
    "link-local": ["169.254.0.1", "fe80::1", "febf::1"],
    "metadata": [
        "169.254.169.254", "169.254.170.2", "fd00:ec2::254", "100.100.100.200", "192.0.0.192",
        "168.63.129.16", "fd20:ce::254",
    ],
    "protocol assignments": ["192.0.0.1", "192.0.0.170", "2001:1::1", "2001:20::1", "2001:2::1"],
    "documentation": ["192.0.2.1", "198.51.100.1", "203.0.113.1", "2001:db8::1", "3fff::1"],
    "benchmarking": ["198.18.0.1", "198.19.255.255"],
    "anycast of services": [
        "192.31.196.1", "192.52.193.1", "192.88.99.1", "192.175.48.1", "2620:4f:8000::1",
    ],
    "multicast": ["224.0.0.1", "239.255.255.255", "ff02::1", "ff0e::1"],
    "reserved": ["240.0.0.1", "254.1.2.3", "4000::1", "e000::1", "100::1", "5f00::1"],
    "broadcast": ["255.255.255.255"],
    "unspecified": ["::"],
    "unique local": ["fc00::1", "fd12:3456::1"],
    "site-local": ["fec0::1"],
    "v4-mapped": ["::ffff:127.0.0.1", "::ffff:8.8.8.8", "::ffff:a9fe:a9fe"],
    "v4-translated": ["::ffff:0:127.0.0.1"],
    "v4-compatible": ["::127.0.0.1", "::8.8.8.8"],
    "NAT64": ["64:ff9b::127.0.0.1", "64:ff9b::a9fe:a9fe", "64:ff9b::808:808", "64:ff9b:1::1"],
    "6to4": ["2002:7f00:1::1", "2002:a9fe:a9fe::1", "2002:808:808::1"],
    "Teredo": ["2001:0:53aa:64c:0:5b1f:3f57:fff2", "2001::1"],
    "6bone": ["3ffe::1"],
}  # fmt: skip

FORMS: Final = {
    "decimal": ["http://2130706433/", "http://2852039166/", "http://134744072/"],
    "hex": [
        "http://0x7f000001/", "http://0x7f.0x0.0x0.0x1/", "http://0xa9fea9fe/",
        "http://127.0.0.0x1/", "http://0x/",
    ],
    "octal": [
        "http://0177.0.0.1/", "http://017700000001/", "http://127.0.0.01/",
        "http://0251.0376.0251.0376/", "http://010.8.8.8/",
    ],
    "short": [
        "http://127.1/", "http://127.0.1/", "http://0/", "http://169.254.43518/", "http://8.8/",
        "http://1.2.3.4.5/", "http://256.1.1.1/",
    ],
    "unicode digits": [
        "http://\uff11\uff12\uff17.0.0.1/", "http://\u2460\u2461\u2466.\u24ea.\u24ea.\u2460/",
        "http://\u0661\u0662\u0667.0.0.1/", "http://\uff18.\uff18.\uff18.\uff18/",
        "http://\U0001d7cf\U0001d7d0\U0001d7d5.0.0.1/", "http://\uff10x7f000001/",
    ],
    "unicode dots": [
        "http://127\u30020\u30020\u30021/", "http://127\uff0e0\uff0e0\uff0e1/",
        "http://8\uff618\uff618\uff618/", "http://metadata\u3002google\u3002internal/",
    ],
    "unicode names": [
        "http://\uff4c\uff4f\uff43\uff41\uff4c\uff48\uff4f\uff53\uff54/",
        "http://\u24db\u24de\u24d2\u24d0\u24db\u24d7\u24de\u24e2\u24e3/",
        "http://loc\u00adalhost/", "http://local\u200bhost/", "http://example.com\u2100x/",
        "http://example.com\uff0fx/", "http://example.com\uff03x/",
        "http://example.com\uff20127.0.0.1/",
    ],
    "trailing dot": [
        "http://example.com./", "http://localhost./", "http://127.0.0.1./",
        "http://169.254.169.254./", "http://example.com../",
    ],
    "zone id": [
        "http://[fe80::1%25eth0]/", "http://[fe80::1%eth0]/", "http://[::1%25lo]/",
        "http://[2606:2800::1%251]/",
    ],
    "brackets": [
        "http://[127.0.0.1]/", "http://[::1]evil.com/", "http://a[::1]/", "http://[::1/",
        "http://::1/", "http://[v1.x]/", "http://[]/", "http://[[::1]]/", "http://2606:2800::1/",
    ],
    "metadata names": [
        "http://metadata.google.internal/computeMetadata/v1/", "http://metadata/",
        "http://METADATA.GOOGLE.INTERNAL/", "http://instance-data.ec2.internal/",
    ],
    "local names": [
        "http://localhost/", "http://LOCALHOST/", "http://a.localhost/", "http://printer.local/",
        "http://db.internal/", "http://intranet/", "http://router.lan/", "http://nas.home.arpa/",
        "http://x.corp/", "http://x.onion/", "http://kubernetes.default.svc.cluster.local/",
        "http://1.0.0.127.in-addr.arpa/",
    ],
    "not names": [
        "http://a..b.com/", "http://.example.com/", "http://-a.example.com/",
        "http://a-.example.com/", "http://" + "a" * 64 + ".com/",
        "http://" + "a." * 127 + "com/", "http://exa mple.com/", "http://ex%61mple.com/",
        "http://%31%32%37.0.0.1/", "http://a*b.com/", "http://a,b.com/", "http://a'b.com/",
    ],
    "userinfo": [
        "http://user@example.com/", "http://user:pass@example.com/", "http://@example.com/",
        "http://:@example.com/", "http://example.com@127.0.0.1/",
        "http://example.com:80@127.0.0.1/", "http://127.0.0.1@example.com/",
        "http://a%40b@example.com/", "http://example.com\\@127.0.0.1/",
    ],
    "fragments": [
        "http://example.com/#x", "http://example.com#@127.0.0.1/",
        "http://127.0.0.1#.example.com/", "http://example.com/?q#", "http://#/",
    ],
    "signs": [
        "http://example.com\\127.0.0.1/", "http:\\\\127.0.0.1/", "http://exam\tple.com/",
        "http://example.com\r\nHost: x/", "http://example.com/\x00", " http://example.com/",
        "http://example.com/ ", "\thttp://127.0.0.1/", "http://example.com/\u2028",
        "http://example.com/\u00a0", "http://example.com/\ud800",
    ],
    "schemes": [
        "ftp://example.com/", "file:///etc/passwd", "gopher://127.0.0.1:6379/_",
        "ws://example.com/", "javascript:alert(1)", "//example.com/", "example.com", "/path", "",
        "http", "http:", "http:/example.com", "http:example.com", "http:///example.com",
        "https://", "http://?q", "http:////127.0.0.1/", "tcp://example.com/", "unix:///x",
    ],
    "ports": [
        "http://example.com:8080/", "http://example.com:22/", "http://example.com:0/",
        "http://example.com:65536/", "http://example.com:99999999/", "http://example.com:/",
        "http://example.com:-80/", "http://example.com:+80/", "http://example.com:8_0/",
        "http://example.com:\uff18\uff10/", "http://example.com: 80/",
        "http://example.com:80:80/", "http://example.com:http/",
    ],
    "long": ["http://example.com/" + "a" * 2048],
}  # fmt: skip


def literal(address: str) -> str:
    return f"http://[{address}]/" if ":" in address else f"http://{address}/"


REFUSED: Final = {
    **{f"address {kind}": [literal(each) for each in held] for kind, held in ADDRESSES.items()},
    **FORMS,
}
EVERY_ADDRESS: Final = [each for held in ADDRESSES.values() for each in held]
EVERY_REFUSED: Final = [each for held in REFUSED.values() for each in held]
