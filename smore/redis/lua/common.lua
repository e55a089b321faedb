-- What scripts share. The host puts before each script the definitions that it uses, and writes out names that it has
-- from tables in Python (smore/redis/scripts.py):
--   P              the key prefix (ARGV[1])
--   arg.<name>     the script's arguments by name; items = its repeated group, a list of tables by name
--   F.<name>       the field of an invocation's HASH that holds <name> (smore/redis/records.py says what each holds)
--   read(key, '<name>', ...)   these fields by name; each is false where there is no such record
--   list.<shape>   puts named values in the order in which Python reads them (answers, replies, events of the stream)
--   FROM           action -> legal source states -> true, from smore.domain.invocation.TRANSITIONS
--   TTL_RESULT, TTL_SYNC, MAX_LOST, BLOB_EXPIRED, BLOB_LATE, BLOB_LOST   constants from the settings
-- `fk` is a function's key "<project>/<name>", Python's `function`, which is a reserved word in Lua.
--
-- Keys (one Redis primary, not Cluster, so that keys may be computed):
--   P i:<project>:<id>   HASH   one invocation, see F
--   P p:<project>:<id>   STRING payload, gone when the invocation ends; '' where it lies beside Redis (smore/redis/payloads.py)
--   P r:<project>:<id>   STRING result record (opaque here)
--   P q                  ZSET   functions with waiting invocations, by priority
--   P q:<fk>             ZSET   waiting ids by deadline
--   P bulk               HASH   fk -> how many of those are of class batch
--   P prio               HASH   fk -> priority, written by the leader
--   P leases             ZSET   "<fk>|<id>" by lease end
--   P held:<gpu>         SET    "<fk>|<id>" dispatched to or running on a GPU instance
--   P runs:<fk>          HASH   "<gpu>|<claimed us>" -> members left: the function's batches that were claimed and have not ended
--   P done               ZSET   "<fk>|<id>" by the time their record may be dropped
--   P bytes              HASH   payload, result: bytes held
--   P count              HASH   waiting: invocations queued over all functions
--   P projects           HASH   <project>:waiting invocations queued, <project>:open accepted and not ended
--   P rate               HASH   project -> when its next invocation would be due at its rate (us)
--   P idem:<project>:<k> HASH   id, hash, parts: the invocation that came with an Idempotency-Key, the hash of its request
--                               and hashes of its parts, which say what differs in another one
--   P seen               HASH   gpu -> when its worker reported last
--   P ev                 STREAM events, one field e = msgpack array (smore/messages/stream.py)
--   P bell               LIST   not empty: the leader is to read the stream before its next tick
--   P feasible           HASH   fk -> "<stamp>:<backlog us>:<floor us>:<each us>:<counted>:<cold us>:<row us>:<alone us>:<busy>:
--                               <quarantined>", by the leader, see needed()
--   P learned            HASH   fk -> what the leader has learned of it (smore/messages/learned.py)
--   P learned:costs      HASH   gpu -> what it has learned of what functions cost the trainings there
--   P wanted:<fk>        STRING a call was refused for want of an instance within the last second
--   P asks               STRING questions to the leader within the last second
--   P ask:<id>           LIST   the leader's answer to one (smore/messages/reasons.py: DryRunAnswer)
--   P leader, P fence    STRING the leader's fencing token; the counter it comes from
-- Times are integer microseconds of this server's clock; numbers are printed with %.0f because tostring cuts them.

local function us()
  local t = redis.call('TIME')
  return t[1] * 1000000 + t[2]
end

local function int(n) return string.format('%.0f', n) end

local function project(fk) return string.sub(fk, 1, string.find(fk, '/', 1, true) - 1) end

local function record_key(fk, id) return P .. 'i:' .. project(fk) .. ':' .. id end

local function emit(event)
  return redis.call('XADD', P .. 'ev', '*', 'e', cmsgpack.pack(event))
end

-- The leader waits on the list `bell`, not on the stream: an event on the stream does not have to wake it.
local function wake_leader()
  if redis.call('EXISTS', P .. 'bell') == 0 then redis.call('LPUSH', P .. 'bell', '') end
end

local function is_leader(token) return redis.call('GET', P .. 'leader') == token end

local function split(member)
  local bar = string.find(member, '|', 1, true)
  return string.sub(member, 1, bar - 1), string.sub(member, bar + 1)
end

-- Changes of the counters, written once by flush(), with which every script that writes ends.
local waiting, result_bytes = 0, 0
local payload_bytes = 0
-- The same by field of P projects.
local of_project = {}
-- What flush() wakes the leader for: an invocation has begun to wait; there may be room for what waits.
local arrived, freed = false, false

local function count(fk, what, change)
  local field = project(fk) .. ':' .. what
  of_project[field] = (of_project[field] or 0) + change
end

-- Commands that are sent once for many invocations, by flush(), because a call costs more than an argument: name -> the
-- command, and what Redis answered to those that were sent, summed.
local batched, answered = {}, {}

local function send(name)
  local answer = redis.call(unpack(batched[name]))
  if type(answer) == 'number' then answered[name] = (answered[name] or 0) + answer end
  batched[name] = nil
end

-- `key` '' = the members are keys.
local function later(command, key, member, value)
  local name = command .. key
  local call = batched[name]
  if not call then
    call = { command }
    if key ~= '' then call[2] = key end
    batched[name] = call
  end
  call[#call + 1] = member
  call[#call + 1] = value
  -- unpack() takes about 8,000.
  if #call > 1000 then send(name) end
end

-- Functions whose queues change, and runs of a function -> batch -> members that have left it.
local moved, left = {}, {}
-- How many invocations began to wait in this call.
local joined = 0
-- fk -> by how many more, or fewer, of class batch wait.
local bulk_moved = {}

-- Take an invocation off wherever it waits or runs.
local function detach(fk, id, record)
  if record.state == 'queued' then
    later('ZREM', P .. 'q:' .. fk, id)
    moved[fk] = true
    if record.bulk then bulk_moved[fk] = (bulk_moved[fk] or 0) - 1 end
  else
    later('ZREM', P .. 'leases', fk .. '|' .. id)
    later('SREM', P .. 'held:' .. record.gpu, fk .. '|' .. id)
    local runs, batch = P .. 'runs:' .. fk, record.gpu .. '|' .. record.claimed_us
    left[runs] = left[runs] or {}
    left[runs][batch] = (left[runs][batch] or 0) + 1
  end
end

local function attach(fk, id, deadline, bulk)
  later('ZADD', P .. 'q:' .. fk, deadline, id)
  moved[fk], arrived, joined = true, true, joined + 1
  if bulk then bulk_moved[fk] = (bulk_moved[fk] or 0) + 1 end
end

-- Write what detach() and attach() have noted.
local function move()
  for name in pairs(batched) do send(name) end
  for fk in pairs(moved) do
    local queue = P .. 'q:' .. fk
    local new = answered['ZADD' .. queue] or 0
    local change = new - (answered['ZREM' .. queue] or 0)
    waiting = waiting + change
    count(fk, 'waiting', change)
    local waits = redis.call('ZCARD', queue)
    if waits == 0 then
      redis.call('ZREM', P .. 'q', fk)
      if bulk_moved[fk] then redis.call('HDEL', P .. 'bulk', fk) end
      bulk_moved[fk] = nil
    elseif waits == new then
      -- Queue.publish_feasible keeps the priority of a function that waits already.
      redis.call('ZADD', P .. 'q', redis.call('HGET', P .. 'prio', fk) or 0, fk)
    end
  end
  for fk, change in pairs(bulk_moved) do redis.call('HINCRBY', P .. 'bulk', fk, int(change)) end
  for runs, batches in pairs(left) do
    for batch, members in pairs(batches) do
      if redis.call('HINCRBY', runs, batch, -members) < 1 then redis.call('HDEL', runs, batch) end
    end
  end
end

-- What Redis held when this call began, read once for many invocations; its keys.
local seen, keys_held = {}, nil

local function once(command, key, field)
  local name = command .. key .. (field or '')
  if seen[name] == nil then
    if field then seen[name] = redis.call(command, key, field) else seen[name] = redis.call(command, key) end
  end
  return seen[name]
end

-- The earliest feasible finish from now in us, 0 = not known. The floor is the best case of an idle platform and always
-- holds. The backlog is today's and holds for a second: with `counted` invocations waiting, and `each` later for every
-- one more (work of class batch counts for a call that is `bulk` itself alone), and `row` later for each of its own rows
-- but the first. With fewer waiting it is no sooner: what was placed meanwhile runs where the backlog counted on room.
-- Where none waits, and fewer of the function's batches are under way than the `busy` ones that were counted, an instance
-- has become free since: `alone`, with nothing before it, takes the place of the backlog.
-- The second value is what a refusal may promise: no less than a cold start, where no instance stood ready. The third is
-- the floor, the fourth the cold start, 0 = an instance stands ready, and the fifth `alone`. The last: whether all GPU
-- instances keep the revision out.
local function needed(fk, revision, t, rows, bulk)
  local feasible = once('HGET', P .. 'feasible', fk)
  if not feasible then return 0, 0, 0, 0, 0, false end
  local stamp, backlog, floor, each, counted, cold, row, alone, busy, quarantined =
    string.match(feasible, '(%d+):(%d+):(%d+):(%d+):(%d+):?(%d*):?(%d*):?(%d*):?(%d*):?(%d*)')
  local need = tonumber(floor)
  local wider = (tonumber(row) or 0) * (tonumber(rows) - 1)
  local by_itself, kept_out = (tonumber(alone) or 0) + wider, false
  if t - tonumber(stamp) < 1000000 then
    local waits = once('ZCARD', P .. 'q:' .. fk) + joined
    if not bulk and waits > tonumber(counted) then
      waits = waits - tonumber(once('HGET', P .. 'bulk', fk) or 0) - (bulk_moved[fk] or 0)
    end
    local bound = tonumber(backlog) + tonumber(each) * math.max(0, waits - tonumber(counted)) + wider
    if waits == 0 and once('HLEN', P .. 'runs:' .. fk) < (tonumber(busy) or 0) then bound = by_itself end
    need = math.max(need, bound)
    kept_out = quarantined == revision
  end
  local from_cold = tonumber(cold) or 0
  if from_cold > 0 then from_cold = from_cold + wider end
  return need, math.max(need, from_cold), tonumber(floor), from_cold, by_itself, kept_out
end

-- The bound that one more invocation with `size` bytes of payload would break, and its value; nil = none.
-- `bounds` holds max_function_pending, max_pending, max_payload_bytes, max_result_bytes, max_events, max_keys.
local function full(fk, size, bounds)
  if once('ZCARD', P .. 'q:' .. fk) + joined >= tonumber(bounds.max_function_pending) then
    return 'function', bounds.max_function_pending
  end
  if tonumber(once('HGET', P .. 'count', 'waiting') or 0) + joined >= tonumber(bounds.max_pending) then
    return 'pending', bounds.max_pending
  end
  if tonumber(once('HGET', P .. 'bytes', 'payload') or 0) + payload_bytes + size > tonumber(bounds.max_payload_bytes) then
    return 'payload_bytes', bounds.max_payload_bytes
  end
  if tonumber(once('HGET', P .. 'bytes', 'result') or 0) > tonumber(bounds.max_result_bytes) then
    return 'result_bytes', bounds.max_result_bytes
  end
  if once('XLEN', P .. 'ev') + joined >= tonumber(bounds.max_events) then return 'events', bounds.max_events end
  -- Each has a record and a payload.
  keys_held = keys_held or redis.call('DBSIZE')
  if keys_held + 2 * joined >= tonumber(bounds.max_keys) then return 'keys', bounds.max_keys end
end

-- The limit of its project that one more invocation would break, its value and how long until it could be taken, us;
-- nil = none. `limits` holds rate_per_s, burst, depth, concurrency, '' = none. The rate counts the invocation at once, so
-- nothing may refuse it afterwards; with `asks` nothing is counted.
local function limited(fk, t, limits, asks)
  local home = project(fk)
  local function held(what) return tonumber(once('HGET', P .. 'projects', home .. ':' .. what) or 0) + joined end
  if limits.depth ~= '' and held('waiting') >= tonumber(limits.depth) then return 'depth', limits.depth, 1000000 end
  if limits.concurrency ~= '' and held('open') >= tonumber(limits.concurrency) then
    return 'concurrency', limits.concurrency, 1000000
  end
  if limits.rate_per_s ~= '' then
    -- The generic cell rate algorithm: `due` runs ahead of now by at most the burst.
    local every = 1000000 / tonumber(limits.rate_per_s)
    local due = math.max(t, tonumber(redis.call('HGET', P .. 'rate', home) or 0))
    local early = due - t - (tonumber(limits.burst) - 1) * every
    if early > 0 then return 'rate', limits.rate_per_s, early end
    if not asks then redis.call('HSET', P .. 'rate', home, int(due + every)) end
  end
end

-- channel -> list of frames, each 10 digits (the length of the rest), the head, a line feed, the result.
local replies = {}

local function reply(channel, head, blob)
  if channel == '' then return end
  local body = table.concat(head, '|') .. '\n' .. blob
  local frames = replies[channel]
  if not frames then
    frames = {}
    replies[channel] = frames
  end
  frames[#frames + 1] = string.format('%010d', #body) .. body
end

-- 0 is not sent: most calls change one of the three, and Lua's negative zero is no integer to Redis before 7.
local function add(hash, field, change)
  if change ~= 0 then redis.call('HINCRBY', P .. hash, field, change) end
end

local function flush()
  move()
  add('count', 'waiting', waiting)
  for field, change in pairs(of_project) do
    -- What an older version accepted was not counted.
    if change ~= 0 and redis.call('HINCRBY', P .. 'projects', field, change) < 0 then
      redis.call('HSET', P .. 'projects', field, 0)
    end
  end
  add('bytes', 'payload', payload_bytes)
  add('bytes', 'result', result_bytes)
  for channel, frames in pairs(replies) do redis.call('PUBLISH', channel, table.concat(frames)) end
  if arrived or freed and tonumber(redis.call('HGET', P .. 'count', 'waiting') or 0) > 0 then wake_leader() end
end

-- What settle() needs of an invocation.
local function settled_record(key)
  return read(key, 'state', 'attempt', 'gpu', 'starts', 'deadline_us', 'arrival_us', 'claimed_us', 'started_us',
    'revision', 'rows', 'sync', 'payload_bytes', 'channel', 'key_id', 'trace', 'schedule_us', 'bulk')
end

-- The one way to end an invocation. The caller has checked state and attempt; `record` is its settled_record(). `meta`
-- is the worker's JSON about the execution.
local function settle(fk, id, key, record, state, cause, t, blob, meta)
  local now, home = int(t), project(fk)
  detach(fk, id, record)
  freed = true
  count(fk, 'open', -1)
  later('DEL', '', P .. 'p:' .. home .. ':' .. id)
  later('MSET', '', P .. 'r:' .. home .. ':' .. id, blob)
  redis.call('HSET', key, F.state, state, F.cause, cause, F.finished_us, now, F.result_bytes, #blob)
  payload_bytes = payload_bytes - record.payload_bytes
  result_bytes = result_bytes + #blob
  later('ZADD', P .. 'done', int(t + (record.sync == '1' and TTL_SYNC or TTL_RESULT)), fk .. '|' .. id)
  reply(record.channel, list.reply({
    id = id, state = state, cause = cause, attempt = record.attempt, arrival_us = record.arrival_us,
    claimed_us = record.claimed_us, started_us = record.started_us, finished_us = now, gpu = record.gpu,
    schedule_us = record.schedule_us, deadline_us = record.deadline_us,
  }), blob)
  emit(list.Settled({
    fk = fk, revision = tonumber(record.revision), id = id, attempt = tonumber(record.attempt),
    starts = tonumber(record.starts), state = state, cause = cause, gpu = record.gpu,
    arrival_us = tonumber(record.arrival_us), deadline_us = tonumber(record.deadline_us),
    claimed_us = tonumber(record.claimed_us), started_us = tonumber(record.started_us), finished_us = t,
    rows = tonumber(record.rows), key_id = record.key_id, trace = record.trace,
    schedule_us = tonumber(record.schedule_us), meta = meta or '',
  }))
end

-- The worker that held an attempt was lost: what its caller is told of it. `gpu` is the worker's.
local function mark_lost(key, gpu)
  redis.call('HSET', key, F.lost_gpu, gpu, F.lost_us, redis.call('HGET', P .. 'seen', gpu) or 0)
end

-- Back to the queue (returns 1), or to `failed` when a limit is reached (returns 0). `refund`: the start does not count,
-- because user code did not fail on its own (its batch did), nor does a dispatch that its worker gives back.
local function back(fk, id, key, cause, t, blob, refund, alone)
  local record = read(key, 'state', 'gpu', 'attempt', 'starts', 'lost', 'max_attempts', 'deadline_us', 'arrival_us',
    'claimed_us', 'rows', 'shape', 'revision', 'alone', 'bulk')
  local starts = tonumber(record.starts)
  if record.state == 'dispatched' then
    if not refund and redis.call('HINCRBY', key, F.lost, 1) > MAX_LOST then
      settle(fk, id, key, settled_record(key), 'failed', 'dispatch_limit', t, blob)
      return 0
    end
  elseif refund then
    starts = redis.call('HINCRBY', key, F.starts, -1)
  end
  if starts >= tonumber(record.max_attempts) then
    local why = cause == 'worker_lost' and 'attempt_limit' or cause
    settle(fk, id, key, settled_record(key), 'failed', why, t, blob)
    return 0
  end
  detach(fk, id, record)
  local stays_alone = alone and '1' or record.alone
  -- What is claimed and started later than now belongs to another attempt.
  redis.call('HSET', key, F.state, 'queued', F.gpu, '', F.claimed_us, 0, F.started_us, 0, F.schedule_us, 0,
    F.alone, stays_alone)
  attach(fk, id, record.deadline_us, record.bulk)
  emit(list.Returned({
    fk = fk, revision = tonumber(record.revision), id = id, attempt = tonumber(record.attempt), cause = cause,
    gpu = record.gpu, at_us = t, arrival_us = tonumber(record.arrival_us), deadline_us = tonumber(record.deadline_us),
    rows = tonumber(record.rows), shape = record.shape, alone = tonumber(stays_alone),
    bulk = record.bulk and 1 or 0,
  }))
  return 1
end
