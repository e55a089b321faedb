-- Accept invocations of one function, or say why not. Returns for each item list.accepted, or list.admission for one that
-- is not.
-- item.slo_us = deadline from now, 0 = item.deadline_us is it; item.sync '1' = its caller waits for the reply;
-- item.idempotency_key '' = none; item.volatile '1' = the payload need not be on disk, its caller can send it again;
-- item.bulk '1' = it is of class batch;
-- item.size '' = the payload is here, else its size and it lies beside Redis; arg.led '1' = refused while nobody leads.
local fk = arg.fk
local home, t = project(fk), us()
-- Printing a number costs as much as a command.
local now, revision = int(t), tonumber(arg.revision)

local function accept(item)
  local id = item.id
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
  if item.idempotency_key ~= '' then
    idem = P .. 'idem:' .. home .. ':' .. item.idempotency_key
    local made = redis.call('HMGET', idem, 'id', 'hash', 'parts')
    if made[1] then
      local status = made[2] == item.request_hash and 'replay' or 'mismatch'
      return list.admission({ status = status, known_id = made[1], known_parts = made[3] or '' })
    end
  end
  if arg.led == '1' and once('EXISTS', P .. 'leader') == 0 then return list.admission({ status = 'no_leader' }) end
  local deadline = tonumber(item.deadline_us)
  if item.slo_us ~= '0' then deadline = t + tonumber(item.slo_us) end
  if deadline <= t then return list.admission({ status = 'late', now_us = now }) end

  local need, promised, floor, cold, alone, kept_out = needed(fk, arg.revision, t, item.rows, item.bulk == '1')
  if kept_out then return list.admission({ status = 'quarantined' }) end
  if t + need > deadline then
    -- Nobody would load what is refused for want of an instance; a call that one would have served asks for it.
    if cold > 0 and t + floor <= deadline and redis.call('SET', P .. 'wanted:' .. fk, '', 'NX', 'PX', 1000) then
      emit(list.Wanted({ fk = fk, revision = revision, at_us = t }))
      wake_leader()
    end
    return list.admission({
      status = 'infeasible', earliest_us = int(t + promised), now_us = now, floor_us = int(floor), cold_us = int(cold),
      alone_us = int(alone),
    })
  end

  local size = tonumber(item.size) or #item.payload
  local filled, full_at = full(fk, size, arg)
  if filled then return list.admission({ status = 'full', limit = filled, bound = full_at }) end
  local field, most, after = limited(fk, t, arg)
  if field then
    return list.admission({ status = 'limited', limit = field, bound = most, after_us = int(after) })
  end

  local by, gate = int(deadline), int(need)
  -- Redis scans small hashes from the front: what is read and written most stands there.
  redis.call('HSET', key, F.state, 'queued', F.attempt, 0, F.gpu, '', F.starts, 0, F.deadline_us, by,
    F.arrival_us, now, F.claimed_us, 0, F.started_us, 0, F.revision, arg.revision, F.rows, item.rows,
    F.sync, idem and 0 or item.sync, F.payload_bytes, size, F.channel, item.channel, F.key_id, item.key_id,
    F.trace, item.trace, F.schedule_us, 0, F.encoding, item.encoding, F.accept, item.accept, F.alone, 0, F.fk, fk,
    F.lost, 0, F.max_attempts, item.max_attempts, F.shape, item.shape, F.gate_us, gate, F.version, 1)
  if item.bulk == '1' then redis.call('HSET', key, F.bulk, 1) end
  local payload = P .. 'p:' .. home .. ':' .. id
  if item.volatile == '1' then
    redis.set_repl(redis.REPL_REPLICA)
    redis.call('SET', payload, item.payload)
    redis.set_repl(redis.REPL_ALL)
  else
    later('MSET', '', payload, item.payload)
  end
  payload_bytes = payload_bytes + size
  if idem then
    redis.call('HSET', idem, 'id', id, 'hash', item.request_hash, 'parts', item.request_parts)
    redis.call('EXPIRE', idem, arg.idempotency_ttl_s)
  end
  attach(fk, id, by, item.bulk == '1')
  count(fk, 'open', 1)
  emit(list.Arrived({
    fk = fk, revision = revision, id = id, arrival_us = t, deadline_us = deadline, rows = tonumber(item.rows),
    shape = item.shape, key_id = item.key_id, trace = item.trace, gate_us = need,
    bulk = tonumber(item.bulk),
  }))
  return list.accepted({ status = 'ok', arrival_us = now, deadline_us = by, earliest_us = int(t + gate) })
end

local answers = {}
for i, item in ipairs(items) do answers[i] = accept(item) end
flush()
return answers
