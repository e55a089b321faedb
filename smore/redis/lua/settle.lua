-- The leader ends waiting invocations. items: fk, id, action reject|expire|fail, cause, result.
-- Returns {'fenced'} or 1 | 0 for each.
if not is_leader(arg.token) then return { 'fenced' } end
local t = us()
local STATE = { reject = 'rejected', expire = 'expired', fail = 'failed' }
local ended = {}
for _, item in ipairs(items) do
  local key = record_key(item.fk, item.id)
  local record = settled_record(key)
  if record.state == 'queued' and FROM[item.action][record.state] then
    settle(item.fk, item.id, key, record, STATE[item.action], item.cause, t, item.result)
    ended[#ended + 1] = 1
  else
    ended[#ended + 1] = 0
  end
end
flush()
return ended
