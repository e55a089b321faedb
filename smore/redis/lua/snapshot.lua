-- All that a new leader needs, at one instant. No ARGV after P.
-- Returns {last event id, {waiting...}, {held...}, {report...}, {paused...}}:
--   waiting = {fk, revision, id, attempt, arrival, deadline, rows, shape, alone}, held = the same + {state, gpu, started}, report = JSON text
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
  local r = redis.call('HMGET', record_key(fk, id), 'rev', 'at', 'ar', 'dl', 'rows', 'shp', 'al', 'st', 'gpu', 'su')
  return { fk, r[1] or '0', id, r[2] or '0', r[3] or '0', r[4] or '0', r[5] or '1', r[6] or '', r[7] or '0', r[8] or '', r[9] or '', r[10] or '0' }
end
local queued, held, reports = {}, {}, {}
for _, fk in ipairs(redis.call('ZRANGE', P .. 'q', 0, -1)) do
  for _, id in ipairs(redis.call('ZRANGE', P .. 'q:' .. fk, 0, -1)) do queued[#queued + 1] = row(fk, id) end
end
for _, gpu in ipairs(redis.call('SMEMBERS', P .. 'gpus')) do
  local report = redis.call('GET', P .. 'gpu:' .. gpu)
  if report then reports[#reports + 1] = report end
end
for _, member in ipairs(redis.call('ZRANGE', P .. 'leases', 0, -1)) do
  local fk, id = split(member)
  held[#held + 1] = row(fk, id)
end
return { last, queued, held, reports, redis.call('SMEMBERS', P .. 'paused') }
