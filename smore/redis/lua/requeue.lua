-- A worker gives invocations back. items: id, attempt. arg.refund '1' = the start, or the dispatch of what was not begun,
-- does not count; arg.alone '1' = from now on it runs without others in its batch; arg.result: of one that a limit makes fail.
-- Returns for each: 1 queued again, 0 failed by a limit, -1 not this worker's.
local t = us()
local queued = {}
for _, item in ipairs(items) do
  local key = record_key(arg.fk, item.id)
  local record = read(key, 'state', 'attempt')
  if record.state and FROM.requeue[record.state] and record.attempt == item.attempt then
    queued[#queued + 1] = back(arg.fk, item.id, key, arg.cause, t, arg.result, arg.refund == '1', arg.alone == '1')
  else
    queued[#queued + 1] = -1
  end
end
flush()
return queued
