-- The leader's dispatch: lease, attempt and the ready-made Celery message in one step, so that there is no window between them.
-- ARGV after P: 2 fence  3 fk  4 gpu  5 lease_us  6 Celery list  7 message  8 decision (JSON, opaque)  9 schedule_us (how long
-- deciding took)  10 the leader's stream cursor ('' = does not matter)  11.. pairs (id, attempt the leader knows)
-- Returns {'fenced'} or {now, cursor, claimed id...}: cursor = the id of this decision's entry on the stream where it directly follows the leader's
-- cursor, else ''. An invocation in another state or attempt is passed over: the message still names it, and
-- start.lua refuses it there. A call that is repeated answers as it did the first time and sends nothing.
if not is_leader(ARGV[2]) then return { 'fenced' } end
local fk, gpu = ARGV[3], ARGV[4]
local t = us()
local lease_end = int(t + tonumber(ARGV[5]))
local claimed, attempts = { int(t), '' }, {}
for i = 11, #ARGV, 2 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  local key = record_key(fk, id)
  local r = redis.call('HMGET', key, 'st', 'at', 'gpu')
  if r[1] and FROM.claim[r[1]] and r[2] == attempt then
    detach(fk, id, r[1])
    redis.call('HSET', key, 'st', 'dispatched', 'at', tonumber(attempt) + 1, 'cl', int(t), 'sc', ARGV[9], 'gpu', gpu)
    redis.call('ZADD', P .. 'leases', lease_end, fk .. '|' .. id)
    redis.call('SADD', P .. 'held:' .. gpu, fk .. '|' .. id)
    claimed[#claimed + 1] = id
    attempts[#attempts + 1] = { id, tonumber(attempt) + 1 }
  elseif FROM.requeue[r[1]] and r[2] == string.format('%d', attempt + 1) and r[3] == gpu then
    -- The client repeats a call when its connection breaks before the answer comes: this one was carried out then.
    claimed[#claimed + 1] = id
  end
end
if #attempts > 0 then
  redis.call('LPUSH', ARGV[6], ARGV[7])
  local last = ARGV[10] ~= '' and redis.call('XREVRANGE', P .. 'ev', '+', '-', 'COUNT', 1)
  local entry = emit({ 'd', 1, fk, gpu, t, attempts, ARGV[8] })
  if last and last[1] and last[1][1] == ARGV[10] then claimed[2] = entry end
end
flush()
return claimed
