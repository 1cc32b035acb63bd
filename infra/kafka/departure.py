"""Leaving a consumer group in the name of a member that cannot any more, since it is dead.

Kafka's LeaveGroup names a member by its id alone, so that anybody may send it. The others get its
partitions with their next heartbeats instead of after its session time-out (design rule 6.9).
"""

import asyncio

from aiokafka.client import AIOKafkaClient, ConnectionGroup, CoordinationType
from aiokafka.errors import KafkaError, UnknownMemberIdError, for_code
from aiokafka.protocol.group import LeaveGroupRequest

from infra.errors import LogUnavailable
from infra.kafka.connecting import CONNECT_TIMEOUT_S, RETRY_BACKOFF_MS, UNREACHABLE, bounded
from infra.membership import Membership

__all__ = ["leave_for"]


async def leave_for(bootstrap: str, membership: Membership) -> bool:
    """Take a dead member out of its group; return whether it was still in it.

    Raises: LogUnavailable where the group's coordinator cannot be asked; repeating is harmless.
    """
    client = AIOKafkaClient(
        bootstrap_servers=bootstrap,
        client_id="death-notice",
        request_timeout_ms=int(CONNECT_TIMEOUT_S * 1_000),
        retry_backoff_ms=RETRY_BACKOFF_MS,
        security_protocol="PLAINTEXT",
    )
    try:
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            await client.bootstrap()
            node = await client.coordinator_lookup(CoordinationType.GROUP, membership.group)
            request = LeaveGroupRequest(membership.group, membership.member_id)
            answer = await client.send(node, request, group=ConnectionGroup.COORDINATION)
            error = for_code(answer.error_code)
            if error is UnknownMemberIdError:
                return False
            if issubclass(error, KafkaError) and answer.error_code:
                raise error(f"leaving {membership.group}")
            return True
    except UNREACHABLE as error:
        raise LogUnavailable(f"leaving {membership.group} for a dead member: {error!r}") from error
    finally:
        await bounded(client.close())
