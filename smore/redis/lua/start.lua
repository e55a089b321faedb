-- A worker begins a batch. items: id, attempt. arg.how: 'look' = it asks what it could begin, and nothing changes; 'known' =
-- it has the payloads already; '' = neither.
-- Returns {now, item...}: one item for each, either '' (not this worker's any more, or its deadline has passed) or
-- list.started (1 where it has that); an empty payload of another size lies beside Redis.
local fk, gpu = arg.fk, arg.gpu
local t = us()
local now, lease_end = int(t), int(t + tonumber(arg.lease_us))
local started = { now }
for _, item in ipairs(items) do
  local id = item.id
  local key = record_key(fk, id)
  local record = read(key, 'state', 'attempt', 'gpu', 'starts', 'deadline_us', 'rows', 'trace', 'encoding', 'accept',
    'alone', 'payload_bytes', 'bulk')
  local answer = ''
  if record.state and FROM.start[record.state] and record.attempt == item.attempt and record.gpu == gpu then
    record.payload = arg.how == 'known' and '' or redis.call('GET', P .. 'p:' .. project(fk) .. ':' .. id)
    if arg.how == 'look' then
      if record.payload then answer = list.started(record) end
    elseif tonumber(record.deadline_us) <= t then
      settle(fk, id, key, settled_record(key), 'expired', 'deadline_expired', t, BLOB_EXPIRED)
    elseif not record.payload then
      -- It was volatile, and this server has started again since.
      settle(fk, id, key, settled_record(key), 'failed', 'payload_lost', t, BLOB_LOST)
    else
      redis.call('HSET', key, F.state, 'running', F.started_us, now, F.starts, tonumber(record.starts) + 1)
      later('ZADD', P .. 'leases', lease_end, fk .. '|' .. id)
      answer = arg.how == 'known' and 1 or list.started(record)
    end
  end
  started[#started + 1] = answer
end
flush()
return started
