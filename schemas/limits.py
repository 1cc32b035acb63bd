"""Every bound of the platform, with the relations between them asserted at import.

Units stand last in the names. Where a bound is full the client gets a clear 429, 529, 413 or 400
before work starts.
"""

KIB = 1024
MIB = 1024 * KIB

# --- HTTP edge
HTTP_BODY_BYTES_MAX = 32 * MIB
HTTP_JSON_DEPTH_MAX = 64
HTTP_MESSAGES_MAX = 100_000
HTTP_STOP_SEQUENCES_MAX = 16
HTTP_STOP_SEQUENCE_CHARS_MAX = 1_024
HTTP_STOP_TOKENS_MAX = 128
HTTP_BAD_WORDS_MAX = 128
HTTP_LOGIT_BIASES_MAX = 1_024
HTTP_TOOLS_MAX = 512
HTTP_OUTPUT_CHOICES_MAX = 1_024
CHOICES_MAX = 16
LOGPROBS_MAX = 20
COMPLETION_LOGPROBS_MAX = 5
GATEWAY_INFLIGHT_MAX = 2_048
KEEPALIVE_MS = 10_000
SLOW_CLIENT_MS = 30_000
RETRY_AFTER_S = 2
LOG_SILENT_MS = 3_500
HTTP_HEAD_BYTES_MAX = 64 * KIB
HTTP_HEAD_READ_MS = 30_000
HTTP_BODIES_BYTES_MAX = 256 * MIB
HTTP_BODY_READ_MS = 30_000
HTTP_DRAIN_BYTES_MAX = 64 * MIB
GATEWAY_DRAIN_MS = 20_000
GATEWAY_LINGER_MS = 500
GATEWAY_JOIN_MS = 10_000

# --- tool calls
TOOL_ARGUMENTS_DEPTH_MAX = 48
TOOL_ARGUMENTS_NUMBER_CHARS_MAX = 1_024

# --- log
EVENT_BYTES_MAX = 8 * MIB
REPLY_BYTES_MAX = 4 * MIB
KAFKA_MESSAGE_BYTES_MAX = 16 * MIB
SEND_TIMEOUT_MS = 10_000
FETCH_WAIT_MS = 500
PROMPT_TOKENS_MAX = 1_000_000
PROMPT_BYTES_PER_TOKEN_MAX = 64
REPLY_TOKENS_MAX = 131_072
LANES = 8
REPLY_PARTITIONS = 4
USAGE_PARTITIONS = 4

# --- times of a request
ADMIT_WITHIN_MS = 30_000
DEADLINE_MS = 600_000
BATCH_DEADLINE_MS = 24 * 3_600_000
LATE_MARGIN_MS = 1_000

# --- worker
WORKER_INFLIGHT_MAX = 256
LANE_UNFINISHED_SPAN_MAX = 1_024
ENGINE_STEP_CREDITS = 8
ENGINE_COMMANDS_MAX = 4_096
ENGINE_STALL_MS = 30_000
ENGINE_GRAMMARS_MAX = 64
GRAMMAR_STEP_ITEMS_MAX = 10_000
GRAMMAR_LEXER_STATES_MAX = 50_000
REPLY_CHOICES_MAX = 16
TOP_LOGPROBS_MAX = 20
TAIL_ENDED_IDS_MAX = 20_000
ECHO_BYTES_MAX = 4 * MIB
ECHO_RECORDS_MAX = 256
COMMIT_EVERY_MS = 250
BARREN_STARTS_MAX = 3
PREFILL_AHEAD_MS = 500
USAGE_LINGER_MS = 250
WHOLE_REPLY_HOLD_MS = 250

# --- gateway reader
MAILBOX_ENTRIES_MAX = 1_024
POLL_RECORDS_MAX = 1_024
REREADS_MAX = 8
REREADS_IDLE_MAX = 2
CLOSE_READ_BACK_MS = 5_000
CLOSE_RETRY_MS = 60_000
CLOSES_PER_RECORD_MAX = 64
RETRY_PAUSE_MS = 200
FAREWELL_MS = 200
FAREWELL_MS_PER_CLOSE = 0.2
FAREWELL_MS_MAX = 3_000
ROUTING_BLOCK_TOKENS = 16
ROUTING_BLOCKS = 2

RESUMABLE_GRACE_MS = 30_000
REPLY_FIND_MS = 10_000
FOREIGN_TAIL_IDLE_MS = 60_000

# --- idempotency
IDEMPOTENCY_KEY_CHARS_MAX = 255
IDEMPOTENCY_PARTITIONS = 4
IDEMPOTENCY_CLAIMS_MAX = 250_000
CLAIM_TRIES_MAX = 4
CLAIM_WITHIN_MS = 15_000
CLAIM_READ_BACK_MS = 2_000
CLAIM_POLL_MS = 5
RESEND_AFTER_MS = 2_000

# --- limits of orgs
QUOTA_TERM_MS = 5_000
"""For how long a lease may be spent, counted from when it was asked for."""
QUOTA_MARGIN_MS = 1_000
"""By so much earlier its holder stops: clocks of two machines run apart by less in a term."""
QUOTA_RENEW_MS = 1_000
QUOTA_ANSWER_MS = 1_000
"""Without an answer for this long a gateway goes by its own share."""
QUOTA_RECALL_MS = 300
"""A request waits so long for what other gateways hold and do not need."""
QUOTA_PAUSE_MS = 20
"""Between two demands for one org that nobody waits for."""
QUOTA_TICK_MS = 100
QUOTA_KEEP_MS = 5_000
"""A lease that no request asked of for this long is given back."""
QUOTA_RECOVERED_MAX = 100_000
"""Grants that a service reads back when it begins; orgs that none of them names begin empty where
there are more."""
QUOTA_REIGN_RECORDS = 512
"""A gateway begins so many grants before the end, to know whose count."""
QUOTA_TAKEOVER_MS = 2_000
"""Demands that nobody answered for this long make a service that stands by begin."""
QUOTA_AHEAD_SHARE = 8
"""A lease holds an eighth of a minute's units, or what was spent lately where that is more."""
QUOTA_RETENTION_MS = 3_600_000
QUOTA_ORGS_MAX = 10_000

# --- batches
BATCH_PARTITIONS = 4
BATCH_ITEMS_MAX = 100_000
BATCH_FILE_ITEMS_MAX = 50_000
BATCH_BODY_BYTES_MAX = 64 * MIB
BATCH_BODY_READ_MS = 120_000
BATCH_FILE_BYTES_MAX = 200 * MIB
BATCH_FILE_READ_MS = 600_000
BATCH_FILENAME_CHARS_MAX = 512
BATCH_FORM_FIELDS_MAX = 16
BATCH_UPLOADS_MAX = 16
FILE_LIFE_S_MIN = 3_600
BATCH_PIECE_BYTES = MIB
BATCH_ITEM_BYTES_MAX = HTTP_BODY_BYTES_MAX
BATCH_ITEMS_INFLIGHT_MAX = 16
BATCHES_RUNNING_MAX = 8
BATCHES_KEPT_MAX = 100_000
BATCHES_UNFINISHED_MAX = 1_000
BATCH_CLAIMS_SHARE_MAX = 0.5
"""Of the idempotency keys in use may belong to items of batches; the rest is for clients' own."""
BATCH_READS_MAX = 8
BATCH_READ_RECORDS_MAX = 64
BATCH_LINES_PER_TURN = 100
BATCH_INLINE_BYTES_MAX = 32 * KIB
BATCH_RESULTS_PER_RECORD_MAX = 500
BATCH_ITEM_FAILURES_MAX = 3
BATCH_RETRY_MS_MIN = 500
BATCH_RETRY_MS_MAX = 10_000
BATCH_LOOK_EVERY_MS = 1_000
BATCH_FAULTS_MAX = 100

# --- structured output and tools
JSON_SCHEMA_BYTES_MAX = 256 * KIB
JSON_SCHEMA_DEPTH_MAX = 30
JSON_SCHEMA_PROPERTIES_MAX = 2_000
JSON_SCHEMA_CONSTANTS_MAX = 5_000
JSON_SCHEMA_STRING_CHARS_MAX = 8_192
JSON_SCHEMA_ITEMS_MAX = 4_096
JSON_SCHEMA_LENGTH_MAX = 100_000
TOOL_CALLS_MAX = 32
GRAMMAR_COMPILE_MS = 2_000
GRAMMAR_COMPILER_START_MS = 20_000
GRAMMAR_COMPILER_IDLE_MS = 300_000
GRAMMAR_COMPILER_BYTES_MAX = 2_048 * MIB
GRAMMARS_WAITING_MAX = 64
GRAMMARS_KEPT = 1_024
GRAMMARS_KEPT_BYTES_MAX = 32 * MIB

# --- fleet
STATUS_EVERY_MS = 1_000
STATUS_LOST_MS = 5_000
STATUS_SILENCE_MS = 2_000
FLEET_STATUS_RETENTION_MS = 3_600_000

# --- retention
IDEMPOTENCY_MS = 24 * 3_600_000
REQUESTS_RETENTION_MS = BATCH_DEADLINE_MS + 3_600_000
REPLIES_RETENTION_MS = REQUESTS_RETENTION_MS + IDEMPOTENCY_MS + BATCH_DEADLINE_MS
IDEMPOTENCY_RETENTION_MS = 2 * IDEMPOTENCY_MS
USAGE_RETENTION_MS = 35 * 24 * 3_600_000
OFFSETS_RETENTION_MS = 2 * REQUESTS_RETENTION_MS
BATCH_RESULTS_KEPT_MS = 29 * 24 * 3_600_000
BATCH_CONTENTS_RETENTION_MS = BATCH_RESULTS_KEPT_MS + 24 * 3_600_000
BATCH_FACTS_RETENTION_MS = 2 * BATCH_RESULTS_KEPT_MS
DEAD_LETTERS_RETENTION_MS = 14 * 24 * 3_600_000
DEAD_LETTERS_PER_MINUTE_MAX = 600

# --- metering
METERING_BATCH_ROWS_MAX = 5_000
METERING_LINGER_MS = 500
METERING_COMMIT_EVERY_MS_MIN = 2_000
METERING_COMMIT_EVERY_MS_MAX = 10_000
METERING_REFRESH_SHARE_MAX = 0.05
"""Of the time may go into recomputing rollups, which costs more as an hour fills; more of it only
where that takes longer than half a second."""
METERING_RETRY_MS_MIN = 200
METERING_RETRY_MS_MAX = 5_000
DEAD_LETTER_VALUE_BYTES_MAX = MIB
AUDIT_WAIT_S = 60

# --- ClickHouse
STORE_TIMEOUT_S = 30
CLICKHOUSE_QUEUE_MAX = 64
CLICKHOUSE_WORKERS = 2
CLICKHOUSE_BODY_BYTES_MAX = 256 * MIB
CLICKHOUSE_SQL_BYTES_MAX = MIB
CLICKHOUSE_RESULT_BYTES_MAX = 256 * MIB
CLICKHOUSE_QUERY_S_MAX = 60

# --- stream-app
SEEN_RETENTION_MS = REQUESTS_RETENTION_MS
SEEN_SWEPT_PER_RECORD_MAX = 8
TOTALS_UNCONFIRMED_MAX = 10_000
TOTALS_COMMIT_EVERY_MS = 1_000
TOTALS_PUBLISH_EVERY_MS = 500
TOTALS_LINGER_MS = 100
USAGE_DELIVERY_CHECK_MS = 1_000
USAGE_DELIVERY_CHECKS_MAX = 5
"""How many checks may find the same records undelivered while nothing is handled."""

# A call's arguments come back in the next request, inside its messages' own nesting.
assert TOOL_ARGUMENTS_DEPTH_MAX + 16 <= HTTP_JSON_DEPTH_MAX
# A request that fits the body limit must fit an event: 4 bytes per token id at most in Avro's
# zigzag for ids < 2**27.
assert PROMPT_TOKENS_MAX * 4 < EVENT_BYTES_MAX
# A terminal repeats all ids of a reply, beside the step's other deltas.
assert REPLY_TOKENS_MAX * 4 * ENGINE_STEP_CREDITS < EVENT_BYTES_MAX
# The delta that carries a terminal may hold all of the reply beside it.
assert 2 * REPLY_BYTES_MAX <= EVENT_BYTES_MAX
# The broker must take whatever we let ourselves encode, with room for headers and batch framing.
assert EVENT_BYTES_MAX < KAFKA_MESSAGE_BYTES_MAX
# A keep-alive must come before a client's shortest usual read time-out (30 s) and before we call
# it slow.
assert KEEPALIVE_MS < SLOW_CLIENT_MS
# Several of the largest bodies must fit beside each other, and a refused one is drained whole.
assert HTTP_BODIES_BYTES_MAX >= 2 * HTTP_BODY_BYTES_MAX
assert HTTP_DRAIN_BYTES_MAX >= HTTP_BODY_BYTES_MAX
# Closes repeat their replies' stop strings, of up to four bytes a character, and little more.
assert (
    2 * 4 * CLOSES_PER_RECORD_MAX * HTTP_STOP_SEQUENCES_MAX * HTTP_STOP_SEQUENCE_CHARS_MAX
    <= EVENT_BYTES_MAX
)
# A gateway that drains waits for the farewells of clients that left.
assert FAREWELL_MS < FAREWELL_MS_MAX < GATEWAY_DRAIN_MS
# A close is repeated for longer than one send may take, else it would be tried once only.
assert CLOSE_RETRY_MS > 2 * SEND_TIMEOUT_MS
# An unknown send must be known as such before the request is called late.
assert SEND_TIMEOUT_MS < ADMIT_WITHIN_MS < DEADLINE_MS < BATCH_DEADLINE_MS
# A gateway is lost only after several reports are missing.
assert STATUS_LOST_MS >= 5 * STATUS_EVERY_MS
# A silence too short to be noted must not make anyone look lost, who reported just before the
# others did and comes back after them.
assert STATUS_SILENCE_MS + 2 * STATUS_EVERY_MS < STATUS_LOST_MS
assert STATUS_SILENCE_MS >= 2 * STATUS_EVERY_MS
# The response store outlives every record that may be delivered again (design section 4).
assert REPLIES_RETENTION_MS >= REQUESTS_RETENTION_MS + IDEMPOTENCY_MS
assert OFFSETS_RETENTION_MS > REQUESTS_RETENTION_MS
# A batch's input and results stand for as long as clients are told, and it is listed for longer.
assert BATCH_RESULTS_KEPT_MS + BATCH_DEADLINE_MS <= BATCH_CONTENTS_RETENTION_MS
assert BATCH_CONTENTS_RETENTION_MS < BATCH_FACTS_RETENTION_MS
# An item is claimed for as long as its batch runs: whoever runs it again finds the claim.
assert BATCH_DEADLINE_MS <= IDEMPOTENCY_MS
# A piece and the places of all pieces of the largest content fit an event.
assert 2 * BATCH_PIECE_BYTES < EVENT_BYTES_MAX
assert 32 * (BATCH_FILE_BYTES_MAX // BATCH_PIECE_BYTES) < EVENT_BYTES_MAX
# Batches leave most of a gateway's room to calls, and a batch's body is held beside others.
assert BATCH_ITEMS_INFLIGHT_MAX * 16 <= GATEWAY_INFLIGHT_MAX
assert 2 * BATCH_BODY_BYTES_MAX <= HTTP_BODIES_BYTES_MAX
assert BATCH_BODY_BYTES_MAX <= HTTP_DRAIN_BYTES_MAX
# Results of items that were not run, with their ids of 64 characters, fit an event.
assert 256 * BATCH_RESULTS_PER_RECORD_MAX < EVENT_BYTES_MAX
# A claim is judged while it stands in the log, and its reply outlives it.
assert IDEMPOTENCY_RETENTION_MS > IDEMPOTENCY_MS + DEADLINE_MS
assert REPLIES_RETENTION_MS >= IDEMPOTENCY_RETENTION_MS
# A claim that took its time leaves the worker time to admit its request, and a lost event is sent
# again before that is over.
assert CLAIM_WITHIN_MS < ADMIT_WITHIN_MS and RESEND_AFTER_MS < ADMIT_WITHIN_MS
# A lease is renewed, and again where the first renewal is lost, before its spending ends.
assert QUOTA_RENEW_MS + 2 * QUOTA_ANSWER_MS <= QUOTA_TERM_MS - QUOTA_MARGIN_MS
# Others have the time of two round trips through the log to give up what they hold.
assert QUOTA_RECALL_MS < QUOTA_ANSWER_MS
# What a minute refills is not forgotten sooner, and what was granted is read back from the log.
assert QUOTA_RETENTION_MS >= 10 * 60_000 > QUOTA_TERM_MS
# All choices of one request run beside each other, with room for other requests.
assert CHOICES_MAX * 4 <= WORKER_INFLIGHT_MAX
# A worker can hold a whole lane's span in flight, and the tail remembers far more than is in
# flight.
assert WORKER_INFLIGHT_MAX <= LANE_UNFINISHED_SPAN_MAX
assert TAIL_ENDED_IDS_MAX >= LANES * LANE_UNFINISHED_SPAN_MAX
# A usage row is visible 2 s after the reply's end: lingering must leave most of that to the insert.
assert 2 * (USAGE_LINGER_MS + METERING_LINGER_MS) <= 1_500
# A usage event that waits for others must not hold up the commit of its lane much.
assert USAGE_LINGER_MS <= COMMIT_EVERY_MS
# What a whole reply's next owner makes again is a matter of a few tokens.
assert WHOLE_REPLY_HOLD_MS < 1_000
# A dead letter with its frame fits an event.
assert 2 * DEAD_LETTER_VALUE_BYTES_MAX < EVENT_BYTES_MAX
# A query never holds one of the engine's workers for ever, so that inserts get their turn.
assert CLICKHOUSE_WORKERS >= 2
# The log is called away before a send to it is given up, and not for the loss of one broker (3 s).
assert 3_000 < LOG_SILENT_MS < SEND_TIMEOUT_MS
# A schema nests in properties and items, two levels each, and vLLM takes JSON of 64 levels.
assert 2 * JSON_SCHEMA_DEPTH_MAX + 2 < HTTP_JSON_DEPTH_MAX
# A grammar travels beside the prompt.
assert JSON_SCHEMA_BYTES_MAX + 4 * PROMPT_TOKENS_MAX < EVENT_BYTES_MAX
# A request that waits for its grammar behind a few bad ones is still admitted in time.
assert 4 * GRAMMAR_COMPILE_MS < ADMIT_WITHIN_MS
# Clients are told to come back soon; SDKs sleep a day if told to.
assert 0 < RETRY_AFTER_S <= 60
# A usage event may come again for as long as its request may be delivered again.
assert SEEN_RETENTION_MS >= REQUESTS_RETENTION_MS
# Changelog writes that wait for each other are acknowledged before the next commit.
assert 4 * TOTALS_LINGER_MS < TOTALS_COMMIT_EVERY_MS
# A record adds one entry of `seen`; a sweep must take away faster than that.
assert SEEN_SWEPT_PER_RECORD_MAX > 1

# --- supervisor
RESTART_WINDOW_S = 60
RESTARTS_PER_WINDOW_MAX = 12
RESTART_SETTLED_S = 10
RESTART_PAUSE_MIN_S = 0.1
RESTART_PAUSE_MAX_S = 5.0
START_WITHIN_S = 180
READY_POLL_MIN_S = 0.2
READY_POLL_MAX_S = 2.0
PROBE_WITHIN_S = 2.0
DRAIN_STAGE_S = 30
HURRIED_STAGE_S = 3
SIGNAL_REPEAT_S = 1.0
ORPHAN_WITHIN_S = 8.0
DEATH_NOTICE_TRIES_MAX = 60
DEATH_NOTICE_PAUSE_S = 0.5
LOG_FILE_BYTES_MAX = 16 * MIB
LOG_FILES_KEPT = 3
LISTEN_BACKLOG = 1_024
FREE_DISK_BYTES_MIN = 1_024 * MIB
DATA_VERSION = 1

# A process that ends at once must reach the limit within the window, or it would be restarted for
# ever: the pauses 0.1, 0.2, ... 5 s of that many restarts must fit in.
assert (
    sum(
        min(RESTART_PAUSE_MIN_S * 2**n, RESTART_PAUSE_MAX_S) for n in range(RESTARTS_PER_WINDOW_MAX)
    )
    < RESTART_WINDOW_S - RESTART_SETTLED_S
)
# The second signal must be the user's, not the same Ctrl-C delivered twice.
assert SIGNAL_REPEAT_S < HURRIED_STAGE_S < DRAIN_STAGE_S
