-- The leader's dispatch: lease, attempt and the ready-made Celery message in one step, so that there is no window between
-- them. items: id, the attempt that the leader knows. arg.cursor: how far the leader has read the stream, '' = it does
-- not matter; arg.urgent '1' = what is of class batch is standard from now on.
-- Returns {'fenced'} or {now, cursor, claimed id...}: cursor = the id of this decision's entry on the stream where it
-- directly follows the leader's cursor, else ''. An invocation in another state or attempt is not claimed; the message
-- names it all the same, and start.lua will refuse it. A call that is repeated answers as it did the first time and sends
-- nothing.
if not is_leader(arg.token) then return { 'fenced' } end
local fk, gpu = arg.fk, arg.gpu
local t = us()
local lease_end = int(t + tonumber(arg.lease_us))
local claimed, attempts = { int(t), '' }, {}
for _, item in ipairs(items) do
  local id, next_attempt = item.id, item.attempt + 1
  local key = record_key(fk, id)
  local record = read(key, 'state', 'attempt', 'gpu', 'bulk')
  if record.state and FROM.claim[record.state] and record.attempt == item.attempt then
    detach(fk, id, record)
    redis.call('HSET', key, F.state, 'dispatched', F.attempt, next_attempt, F.claimed_us, int(t),
      F.schedule_us, arg.schedule_us, F.gpu, gpu)
    if arg.urgent == '1' then redis.call('HDEL', key, F.bulk) end
    later('ZADD', P .. 'leases', lease_end, fk .. '|' .. id)
    later('SADD', P .. 'held:' .. gpu, fk .. '|' .. id)
    claimed[#claimed + 1] = id
    attempts[#attempts + 1] = { id, next_attempt }
  elseif FROM.requeue[record.state] and record.attempt == string.format('%d', next_attempt) and record.gpu == gpu then
    -- The client repeats a call when its connection breaks before the answer comes: this one was carried out then.
    claimed[#claimed + 1] = id
  end
end
if #attempts > 0 then
  redis.call('HSET', P .. 'runs:' .. fk, gpu .. '|' .. int(t), #attempts)
  redis.call('LPUSH', arg.celery_list, arg.message)
  local last = arg.cursor ~= '' and redis.call('XREVRANGE', P .. 'ev', '+', '-', 'COUNT', 1)
  local entry = emit(list.Dispatched({ fk = fk, gpu = gpu, at_us = t, attempts = attempts, decision = arg.decision }))
  if last and last[1] and last[1][1] == arg.cursor then claimed[2] = entry end
end
flush()
return claimed
