"""Which settings take effect without a restart. PURE."""

from __future__ import annotations

LIVE = (
    "endpoints",
    "discovery",
    "limits",
    "scheduling",
    "flow_control",
    "pool",
    "pd.enabled",
    "log.level",
    "log.format",
    *(
        f"server.{key}"
        for key in (
            "api_keys",
            "api_keys_file",
            "admin_keys",
            "admin_keys_file",
            "max_body_bytes",
            "max_header_bytes",
            "head_timeout_s",
            "body_idle_timeout_s",
            "body_timeout_s",
            "send_timeout_s",
            "max_connections",
            "max_concurrent_requests",
            "shutdown_grace_s",
            "settle_s",
            "forward_authorization",
            "trusted_peers",
            "trusted_headers",
            "trust_client_kv_transfer_params",
            "strip_untrusted_priority",
            "tenant_salt_secret",
        )
    ),
)
"""Sections and keys that take effect without a restart."""


def live_keys() -> dict[str, list[str]]:
    """Of the sections that are live in part."""
    found: dict[str, list[str]] = {}
    for name in LIVE:
        section, dot, key = name.partition(".")
        if dot:
            found.setdefault(section, []).append(key)
    return found
