-- The usual hand-over, in few commands: of one exclusive resource, to a hold that waits for no other.
-- Where it is not that simple it falls through, and nothing has changed but the counter.

repeat
  local resource = exclusive[1]
  if #exclusive ~= 1 or shared[1] or values[1] ~= AWAITED .. id then break end
  local queue = redis.pcall('ZRANGE', WAIT .. resource, 0, 1)
  local heir = queue[1]
  if not heir then break end
  local is_known, waiter = pcall(cjson.decode, redis.pcall('GET', REQUEST .. heir))
  if not is_known or not is_record(waiter) or waiter.state ~= 'waiting' or waiter.lane
    or waiter.shared or not waiter.exclusive or waiter.exclusive[1] ~= resource
    or waiter.exclusive[2] then
    break
  end
  if redis.pcall('ZSCORE', CLOSED, waiter.owner) or redis.call('EXISTS', UNSETTLED) == 1 then break end
  local number = redis.pcall('INCR', SEQ) -- refused without memory: not so by what falls through
  if type(number) ~= 'number' or number < 1 then break end

  redis.call('DEL', key, GRANT .. id)
  redis.pcall('SREM', OWNER .. request.owner, id)
  redis.pcall('ZREM', WAIT_X .. resource, heir)
  redis.pcall('ZREM', WAIT .. resource, heir)
  local mark, time = queue[2] and AWAITED or UNAWAITED, redis.call('TIME')
  waiter.state, waiter.token = 'held', string.format('%.0f', number)
  waiter.since = time[1] * 1000 + math.floor(time[2] / 1000)
  redis.call('MSET', LOCK .. resource, mark .. heir, REQUEST .. heir, cjson.encode(waiter))
  redis.pcall('RPUSH', GRANT .. heir, waiter.token)
  return { 'released', 0, heir }
until true
