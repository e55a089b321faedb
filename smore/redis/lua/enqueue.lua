-- Accept one invocation, or say why not. Returns list.accepted, or list.admission
-- for one that is not.
-- arg.slo_us = deadline from now, 0 = arg.deadline_us is it; arg.sync '1' = its caller waits for the reply;
-- arg.idempotency_key '' = none; arg.volatile '1' = the payload need not be on disk, its caller can send it again;
-- arg.size '' = the payload is here, else its size and it lies beside Redis; arg.led '1' = refused while nobody leads.
local id, fk = arg.id, arg.fk
local t = us()
local key = record_key(fk, id)
-- The gateway sends a call again when its connection to Redis broke before the answer came: the record is there then.
local earlier = read(key, 'arrival_us', 'deadline_us', 'gate_us')
if earlier.arrival_us then
  return list.accepted({
    status = 'ok', arrival_us = earlier.arrival_us, deadline_us = earlier.deadline_us,
    earliest_us = int(earlier.arrival_us + earlier.gate_us),
  })
end
local idem
if arg.idempotency_key ~= '' then
  idem = P .. 'idem:' .. project(fk) .. ':' .. arg.idempotency_key
  local made = redis.call('HMGET', idem, 'id', 'hash', 'parts')
  if made[1] then
    local status = made[2] == arg.request_hash and 'replay' or 'mismatch'
    return list.admission({ status = status, known_id = made[1], known_parts = made[3] or '' })
  end
end
if arg.led == '1' and redis.call('EXISTS', P .. 'leader') == 0 then return list.admission({ status = 'no_leader' }) end
local deadline = tonumber(arg.deadline_us)
if arg.slo_us ~= '0' then deadline = t + tonumber(arg.slo_us) end
if deadline <= t then return list.admission({ status = 'late', now_us = int(t) }) end

local need, promised, floor, cold, alone, kept_out = needed(fk, arg.revision, t, arg.rows)
if kept_out then return list.admission({ status = 'quarantined' }) end
if t + need > deadline then
  -- Nobody would load what is refused for want of an instance; a call that one would have served asks for it.
  if cold > 0 and t + floor <= deadline and redis.call('SET', P .. 'wanted:' .. fk, '', 'NX', 'PX', 1000) then
    emit(list.Wanted({ fk = fk, revision = tonumber(arg.revision), at_us = t }))
    wake_leader()
  end
  return list.admission({
    status = 'infeasible', earliest_us = int(t + promised), now_us = int(t), floor_us = int(floor), cold_us = int(cold),
    alone_us = int(alone),
  })
end

local size = tonumber(arg.size) or #arg.payload
local filled, full_at = full(fk, size, arg)
if filled then return list.admission({ status = 'full', limit = filled, bound = full_at }) end
local field, most, after = limited(fk, t, arg)
if field then
  return list.admission({ status = 'limited', limit = field, bound = most, after_us = int(after) })
end

-- Printing a number costs as much as a command.
local now, by = int(t), int(deadline)
-- Redis scans small hashes from the front: what is read and written most stands there.
redis.call('HSET', key, F.state, 'queued', F.attempt, 0, F.gpu, '', F.starts, 0, F.deadline_us, by,
  F.arrival_us, now, F.claimed_us, 0, F.started_us, 0, F.revision, arg.revision, F.rows, arg.rows,
  F.sync, idem and 0 or arg.sync, F.payload_bytes, size, F.channel, arg.channel, F.key_id, arg.key_id,
  F.trace, arg.trace, F.schedule_us, 0, F.encoding, arg.encoding, F.accept, arg.accept, F.alone, 0, F.fk, fk,
  F.lost, 0, F.max_attempts, arg.max_attempts, F.shape, arg.shape, F.gate_us, int(need), F.version, 1)
local volatile = arg.volatile == '1'
if volatile then redis.set_repl(redis.REPL_REPLICA) end
redis.call('SET', P .. 'p:' .. project(fk) .. ':' .. id, arg.payload)
if volatile then redis.set_repl(redis.REPL_ALL) end
payload_bytes = size
if idem then
  redis.call('HSET', idem, 'id', id, 'hash', arg.request_hash, 'parts', arg.request_parts)
  redis.call('EXPIRE', idem, arg.idempotency_ttl_s)
end
attach(fk, id, by)
count(fk, 'open', 1)
flush()
emit(list.Arrived({
  fk = fk, revision = tonumber(arg.revision), id = id, arrival_us = t, deadline_us = deadline, rows = tonumber(arg.rows),
  shape = arg.shape, key_id = arg.key_id, trace = arg.trace, gate_us = need,
}))
return list.accepted({ status = 'ok', arrival_us = now, deadline_us = by, earliest_us = int(t + int(need)) })
