-- A worker begins a batch. ARGV after P: 2 fk  3 gpu  4 lease_us  5.. pairs (id, attempt)
-- Returns {now, item...}: one item for each pair, either '' (not ours any more, or its deadline has passed) or
-- {payload, encoding, accept, rows, deadline, trace, alone, size}; an empty payload of another size lies beside Redis.
local fk, gpu = ARGV[2], ARGV[3]
local t = us()
local now, lease_end = int(t), int(t + tonumber(ARGV[4]))
local items = { now }
for i = 5, #ARGV, 2 do
  local id, attempt = ARGV[i], ARGV[i + 1]
  local key = record_key(fk, id)
  local r = redis.call('HMGET', key, 'st', 'at', 'gpu', 'starts', 'dl', 'rows', 'tr', 'enc', 'acc', 'al', 'psz')
  local item = ''
  if r[1] and FROM.start[r[1]] and r[2] == attempt and r[3] == gpu then
    local payload = redis.call('GET', P .. 'p:' .. project(fk) .. ':' .. id)
    if tonumber(r[5]) <= t then
      settle(fk, id, key, facts(key), 'expired', 'deadline_expired', t, BLOB_EXPIRED)
    elseif not payload then
      -- It was volatile, and this server has started again since.
      settle(fk, id, key, facts(key), 'failed', 'payload_lost', t, BLOB_LOST)
    else
      redis.call('HSET', key, 'st', 'running', 'su', now, 'starts', tonumber(r[4]) + 1)
      redis.call('ZADD', P .. 'leases', lease_end, fk .. '|' .. id)
      item = { payload, r[8], r[9], r[6], r[5], r[7], r[10], r[11] }
    end
  end
  items[#items + 1] = item
end
flush()
return items
