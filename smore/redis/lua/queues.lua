-- The queue of each function: {how many wait, priority, when one more invocation of one row would end at the earliest (us
-- from now, 0 = not known), the id of the oldest among the `looked_at` with the nearest deadlines, '' = none waits, how
-- many are of class batch}.
local t, found = us(), {}
for i, item in ipairs(items) do
  local queue, oldest = P .. 'q:' .. item.fk, ''
  -- Ids begin with the time of their making, in digits of one width.
  for _, id in ipairs(redis.call('ZRANGE', queue, 0, arg.looked_at - 1)) do
    if oldest == '' or id < oldest then oldest = id end
  end
  local _, promised = needed(item.fk, '', t, 1)
  found[i] = { redis.call('ZCARD', queue), redis.call('HGET', P .. 'prio', item.fk) or '0', int(promised), oldest,
    redis.call('HGET', P .. 'bulk', item.fk) or '0' }
end
return found
