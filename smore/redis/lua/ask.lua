-- Ask what would become of one invocation, without queueing it: the gate answers here, the leader later.
-- arg.id '' = only the gate is asked; arg.slo_us = deadline from now, 0 = arg.deadline_us is it. Returns list.check.
local fk = arg.fk
local t = us()
local deadline = tonumber(arg.deadline_us)
if arg.slo_us ~= '0' then deadline = t + tonumber(arg.slo_us) end
local function paused(target) return redis.call('SISMEMBER', P .. 'paused', target) == 1 end
local field, most, after = limited(fk, t, arg, true)
local need, promised, floor, _, _, kept_out = needed(fk, arg.revision, t, arg.rows, arg.bulk == '1')

local function leader()
  if arg.id == '' then return 'gate' end
  if redis.call('EXISTS', P .. 'leader') == 0 then return 'alone' end
  local asked = redis.call('INCR', P .. 'asks')
  if asked == 1 then redis.call('PEXPIRE', P .. 'asks', 1000) end
  if asked > tonumber(arg.max_asks_per_s) then return 'many' end
  emit(list.Asked({
    id = arg.id, fk = fk, revision = tonumber(arg.revision), rows = tonumber(arg.rows), deadline_us = deadline,
    at_us = t, bulk = tonumber(arg.bulk),
  }))
  wake_leader()
  return 'asked'
end

return list.check({
  now_us = int(t), deadline_us = int(deadline), needed_us = int(need), promised_us = int(promised),
  full = full(fk, tonumber(arg.size), arg),
  paused = paused('*') and 'platform' or paused('f:' .. fk) and 'function' or '',
  limited = field, bound = most or '0', after_us = int(after or 0), floor_us = int(floor),
  quarantined = kept_out and '1',
  leader = leader(),
})
