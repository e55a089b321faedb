-- All that a new leader needs, at one instant.
-- Returns {last event id, {list.queued...}, {list.leased...}, {report (JSON)...}, {paused target...}}.
local last = '0-0'
local tail = redis.call('XREVRANGE', P .. 'ev', '+', '-', 'COUNT', 1)
if tail[1] then
  last = tail[1][1]
elseif redis.call('EXISTS', P .. 'ev') == 1 then
  local info = redis.call('XINFO', 'STREAM', P .. 'ev')
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then last = info[i + 1] end
  end
end
local function row(fk, id)
  local record = read(record_key(fk, id), 'revision', 'attempt', 'arrival_us', 'deadline_us', 'rows', 'shape', 'alone',
    'bulk', 'state', 'gpu', 'claimed_us', 'started_us')
  record.fk, record.id = fk, id
  return record
end
local queued, leased, reports = {}, {}, {}
for _, fk in ipairs(redis.call('ZRANGE', P .. 'q', 0, -1)) do
  for _, id in ipairs(redis.call('ZRANGE', P .. 'q:' .. fk, 0, -1)) do
    queued[#queued + 1] = list.queued(row(fk, id))
  end
end
for _, gpu in ipairs(redis.call('SMEMBERS', P .. 'gpus')) do
  local report = redis.call('GET', P .. 'gpu:' .. gpu)
  if report then reports[#reports + 1] = report end
end
for _, member in ipairs(redis.call('ZRANGE', P .. 'leases', 0, -1)) do
  leased[#leased + 1] = list.leased(row(split(member)))
end
return { last, queued, leased, reports, redis.call('SMEMBERS', P .. 'paused') }
