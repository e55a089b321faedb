-- Prelude of every script. ARGV[1] is always the key prefix P.
-- The host prepends `local FROM = {...}`: action -> legal source states -> true, made from smore.domain.invocation.TRANSITIONS.
--
-- Keys (one Redis primary, not Cluster, so that keys may be computed):
--   P i:<project>:<id>   HASH   one invocation: f function key "<project>/<name>", rev, st state, at attempt, starts, lost, ma max attempts,
--                               dl deadline, ar arrival, sc deciding took, cl claimed, su started, fi finished (all us), gpu, ch reply channel, enc, acc, rows,
--                               shp shape, al 1 = must run alone, sync, nd what the gate held against the deadline (us from arrival), tr trace, key API key id, psz payload bytes, rsz result bytes, cause
--   P p:<project>:<id>   STRING payload, gone when the invocation ends; '' where it lies beside Redis (smore/redis/payloads.py)
--   P r:<project>:<id>   STRING result record (opaque here)
--   P q                  ZSET   functions with waiting invocations, by priority
--   P q:<fk>             ZSET   waiting ids by deadline
--   P prio               HASH   fk -> priority, written by the leader
--   P leases             ZSET   "<fk>|<id>" by lease end
--   P held:<gpu>         SET    "<fk>|<id>" dispatched to or running on a GPU instance
--   P done               ZSET   "<fk>|<id>" by the time their record may be dropped
--   P bytes              HASH   payload, result: bytes held
--   P count              HASH   waiting: invocations queued over all functions
--   P projects           HASH   <project>:waiting invocations queued, <project>:open accepted and not ended
--   P rate               HASH   project -> when its next invocation would be due at its rate (us)
--   P ev                 STREAM events, one field e = msgpack array (smore/messages/stream.py)
--   P bell               LIST   not empty: the leader is to read the stream before its next tick
--   P feasible           HASH   fk -> "<stamp>:<backlog us>:<floor us>:<each us>:<counted>", written by the leader
--   P asks               STRING questions to the leader within the last second
--   P ask:<id>           LIST   the leader's answer to one (smore/messages/reasons.py: Answer)
--   P leader, P fence    STRING the leader's fencing token; the counter it comes from
-- Times are integer microseconds of this server's clock; numbers are printed with %.0f because tostring cuts them.
local P = ARGV[1]

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

-- The leader waits at the bell, not at the stream: what is on the stream need not wake it by itself.
local function ring()
  if redis.call('EXISTS', P .. 'bell') == 0 then redis.call('LPUSH', P .. 'bell', '') end
end

local function is_leader(fence) return redis.call('GET', P .. 'leader') == fence end

local function split(member)
  local bar = string.find(member, '|', 1, true)
  return string.sub(member, 1, bar - 1), string.sub(member, bar + 1)
end

-- Changes of the counters, written once by flush(), with which every script that writes ends.
local waiting, payload_bytes, result_bytes = 0, 0, 0
-- The same by field of P projects.
local of_project = {}
-- What flush() rings the bell for: something has begun to wait; there may be room for what waits.
local arrived, freed = false, false

local function count(fk, what, change)
  local field = project(fk) .. ':' .. what
  of_project[field] = (of_project[field] or 0) + change
end

-- Take an invocation off wherever it waits or runs.
local function detach(fk, id, st, gpu)
  if st == 'queued' then
    local gone = redis.call('ZREM', P .. 'q:' .. fk, id)
    waiting = waiting - gone
    count(fk, 'waiting', -gone)
    if redis.call('EXISTS', P .. 'q:' .. fk) == 0 then redis.call('ZREM', P .. 'q', fk) end
  else
    redis.call('ZREM', P .. 'leases', fk .. '|' .. id)
    redis.call('SREM', P .. 'held:' .. gpu, fk .. '|' .. id)
  end
end

local function attach(fk, id, deadline)
  local new = redis.call('ZADD', P .. 'q:' .. fk, deadline, id)
  arrived = true
  waiting = waiting + new
  count(fk, 'waiting', new)
  -- Queue.publish_feasible keeps the priority of a function that waits already.
  if redis.call('ZCARD', P .. 'q:' .. fk) == 1 then redis.call('ZADD', P .. 'q', redis.call('HGET', P .. 'prio', fk) or 0, fk) end
end

-- The earliest feasible finish from now in us, 0 = not known. The floor is the best case of an idle platform and always holds; the backlog is
-- today's and holds while it is fresh: with `counted` waiting, and by `each` later for every one more. One less is no sooner: what was placed
-- meanwhile has taken what it was counted for.
local function needed(fk, t)
  local feasible = redis.call('HGET', P .. 'feasible', fk)
  if not feasible then return 0 end
  local stamp, backlog, floor, each, counted = string.match(feasible, '(%d+):(%d+):(%d+):(%d+):(%d+)')
  local need = tonumber(floor)
  if t - tonumber(stamp) < 1000000 then
    need = math.max(need, tonumber(backlog) + tonumber(each) * math.max(0, redis.call('ZCARD', P .. 'q:' .. fk) - tonumber(counted)))
  end
  return need
end

-- The bound that one more invocation with `size` bytes of payload would break, and its value; nil = none. `limits`: max pending of the function,
-- max pending, max payload bytes, max result bytes, max events, max keys.
local function full(fk, size, limits)
  if redis.call('ZCARD', P .. 'q:' .. fk) >= tonumber(limits[1]) then return 'function', limits[1] end
  if tonumber(redis.call('HGET', P .. 'count', 'waiting') or 0) >= tonumber(limits[2]) then return 'pending', limits[2] end
  local bytes = redis.call('HMGET', P .. 'bytes', 'payload', 'result')
  if tonumber(bytes[1] or 0) + size > tonumber(limits[3]) then return 'payload_bytes', limits[3] end
  if tonumber(bytes[2] or 0) > tonumber(limits[4]) then return 'result_bytes', limits[4] end
  if redis.call('XLEN', P .. 'ev') >= tonumber(limits[5]) then return 'events', limits[5] end
  if redis.call('DBSIZE') >= tonumber(limits[6]) then return 'keys', limits[6] end
end

-- The limit of its project that one more invocation would break, its value and how long until it could be taken, us; nil = none. `limits`: rate a
-- second, burst, depth, concurrency, '' = none. Taken by the rate counts at once: nothing may refuse after it. `asks`: nothing is taken.
local function limited(fk, t, limits, asks)
  local home = project(fk)
  if limits[3] ~= '' and tonumber(redis.call('HGET', P .. 'projects', home .. ':waiting') or 0) >= tonumber(limits[3]) then
    return 'depth', limits[3], 1000000
  end
  if limits[4] ~= '' and tonumber(redis.call('HGET', P .. 'projects', home .. ':open') or 0) >= tonumber(limits[4]) then
    return 'concurrency', limits[4], 1000000
  end
  if limits[1] ~= '' then
    -- The generic cell rate algorithm: `due` runs ahead of now by at most the burst.
    local every = 1000000 / tonumber(limits[1])
    local due = math.max(t, tonumber(redis.call('HGET', P .. 'rate', home) or 0))
    local early = due - t - (tonumber(limits[2]) - 1) * every
    if early > 0 then return 'rate', limits[1], early end
    if not asks then redis.call('HSET', P .. 'rate', home, int(due + every)) end
  end
end

-- channel -> list of frames, each 10 digits (the length of the rest), the head, a line feed, the result.
local replies = {}

local function reply(channel, head, blob)
  if channel == '' then return end
  local body = head .. '\n' .. blob
  local list = replies[channel]
  if not list then
    list = {}
    replies[channel] = list
  end
  list[#list + 1] = string.format('%010d', #body) .. body
end

-- 0 is not sent: most calls change one of the three, and Lua's negative zero is no integer to Redis before 7.
local function add(hash, field, change)
  if change ~= 0 then redis.call('HINCRBY', P .. hash, field, change) end
end

local function flush()
  add('count', 'waiting', waiting)
  for field, change in pairs(of_project) do
    -- What an older version accepted was not counted.
    if change ~= 0 and redis.call('HINCRBY', P .. 'projects', field, change) < 0 then redis.call('HSET', P .. 'projects', field, 0) end
  end
  add('bytes', 'payload', payload_bytes)
  add('bytes', 'result', result_bytes)
  for channel, list in pairs(replies) do redis.call('PUBLISH', channel, table.concat(list)) end
  if arrived or freed and tonumber(redis.call('HGET', P .. 'count', 'waiting') or 0) > 0 then ring() end
end

-- What settle() needs of an invocation: 1 st  2 at  3 gpu  4 starts  5 dl  6 ar  7 cl  8 su  9 rev  10 rows  11 sync  12 psz  13 ch  14 key  15 tr
-- 16 sc. All false when there is no such record.
local function facts(key)
  return redis.call('HMGET', key, 'st', 'at', 'gpu', 'starts', 'dl', 'ar', 'cl', 'su', 'rev', 'rows', 'sync', 'psz', 'ch', 'key', 'tr', 'sc')
end

-- The one way to end an invocation. The caller has checked state and attempt; `r` are its facts(). `meta` is the worker's JSON about the execution.
local function settle(fk, id, key, r, state, cause, t, blob, meta)
  local now, home = int(t), project(fk)
  detach(fk, id, r[1], r[3])
  freed = true
  count(fk, 'open', -1)
  redis.call('DEL', P .. 'p:' .. home .. ':' .. id)
  redis.call('SET', P .. 'r:' .. home .. ':' .. id, blob)
  redis.call('HSET', key, 'st', state, 'cause', cause, 'fi', now, 'rsz', #blob)
  payload_bytes = payload_bytes - r[12]
  result_bytes = result_bytes + #blob
  redis.call('ZADD', P .. 'done', int(t + (r[11] == '1' and TTL_SYNC or TTL_RESULT)), fk .. '|' .. id)
  reply(r[13], table.concat({ id, state, cause, r[2], r[6], r[7], r[8], now, r[3], r[16] }, '|'), blob)
  emit({ 't', 1, fk, tonumber(r[9]), id, tonumber(r[2]), tonumber(r[4]), state, cause, r[3], tonumber(r[6]), tonumber(r[5]), tonumber(r[7]),
    tonumber(r[8]), t, tonumber(r[10]), r[14], r[15], tonumber(r[16]), meta or '' })
end

-- Back to the queue, or to `failed` when a limit is reached. `refund` = user code did not fail on its own (its batch did).
local function back(fk, id, key, cause, t, blob, refund, alone)
  local r = redis.call('HMGET', key, 'st', 'gpu', 'at', 'starts', 'lost', 'ma', 'dl', 'ar', 'rows', 'shp', 'rev', 'al')
  local starts = tonumber(r[4])
  if r[1] == 'dispatched' then
    if redis.call('HINCRBY', key, 'lost', 1) > MAX_LOST then
      settle(fk, id, key, facts(key), 'failed', 'dispatch_limit', t, blob)
      return 0
    end
  elseif refund then
    starts = redis.call('HINCRBY', key, 'starts', -1)
  end
  if starts >= tonumber(r[6]) then
    settle(fk, id, key, facts(key), 'failed', cause == 'worker_lost' and 'attempt_limit' or cause, t, blob)
    return 0
  end
  detach(fk, id, r[1], r[2])
  local al = alone and '1' or r[12]
  -- What is claimed and started later than now belongs to another attempt.
  redis.call('HSET', key, 'st', 'queued', 'gpu', '', 'cl', 0, 'su', 0, 'sc', 0, 'al', al)
  attach(fk, id, r[7])
  emit({ 'q', 1, fk, tonumber(r[11]), id, tonumber(r[3]), cause, r[2], t, tonumber(r[8]), tonumber(r[7]), tonumber(r[9]), r[10], tonumber(al) })
  return 1
end
