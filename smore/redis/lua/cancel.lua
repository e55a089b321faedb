-- Cancel one invocation; arg.only_waiting '1' = only while it waits. Returns {'absent'} | {'ended', state} |
-- {'cancelled', state before}. A running one is also named to its GPU worker, which kills the runner if nobody else's
-- work is in it; its result, should it still come, is refused by finish.lua.
local key = P .. 'i:' .. arg.project .. ':' .. arg.id
local fk, record = redis.call('HGET', key, F.fk), settled_record(key)
if not fk then return { 'absent' } end
if not FROM.cancel[record.state] or (arg.only_waiting == '1' and record.state ~= 'queued') then
  return { 'ended', record.state }
end
settle(fk, arg.id, key, record, 'cancelled', 'cancelled', us(), arg.result)
if record.state == 'running' then
  local command = list.Cancel({ fk = fk, id = arg.id, attempt = tonumber(record.attempt) })
  redis.call('XADD', P .. 'cmd:' .. record.gpu, 'MAXLEN', '~', 1000, '*', 'c', cmsgpack.pack(command))
end
flush()
return { 'cancelled', record.state }
