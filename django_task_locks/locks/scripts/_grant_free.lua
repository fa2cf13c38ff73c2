-- The usual case of a request, in few commands: it is new, and nothing is in its way. Where it is not
-- that simple it falls through, and nothing has changed but the counter: each write that a foreign
-- value may hinder comes before those that are certain, and can be undone. No function, since each
-- that uses what is outside of it costs as much as a command.

repeat
  if request.slot or due ~= '' or #ARGV > 1700 then break end
  local known
  if is_hold then
    known = redis.pcall('HGET', OWNERS, owner) -- the TTL, negative once the owner is closed
  else
    known = redis.pcall('HGET', LANES, lane)
  end
  if known ~= ttl_or_lane then break end

  local keys, value = { REQUEST .. id, '' }, UNAWAITED .. id
  for index = 1, exclusive_count do
    keys[2 * index + 1] = LOCK .. exclusive[index]
    keys[2 * index + 2] = value
  end
  if shared[1] then
    local waits = {}
    for index = 1, #shared do waits[index] = WAIT_X .. shared[index] end
    if redis.call('EXISTS', unpack(waits)) > 0 then break end
  end

  local number = redis.pcall('INCR', SEQ)
  if type(number) ~= 'number' or number < 1 then break end
  arrive(request, priority, number)
  request.since = now_ms()
  request.state = 'granted'
  if is_hold then
    request.state = 'held'
    request.token = string.format('%.0f', number)
  end
  keys[2] = record_of(request)
  if redis.call('MSETNX', unpack(keys)) == 0 then break end -- it is known, or a lock is taken
  local is_done = type(redis.pcall('SADD', OWNER .. owner, id)) == 'number'
  for index = 1, #shared do
    -- an error is an exclusive holder, a mark that somebody waits, or something foreign
    is_done = is_done and type(redis.pcall('SADD', LOCK .. shared[index], id)) == 'number'
  end
  if is_done and not is_hold then
    is_done = type(redis.pcall('ZADD', READY .. lane, request.score, id)) == 'number'
      and type(redis.pcall('ZADD', WAKE .. lane, 0, '1')) == 'number'
  end
  if is_done then return { request.state, request.token or '' } end
  for _, resource in ipairs(shared) do redis.pcall('SREM', LOCK .. resource, id) end
  for index = 1, #keys, 2 do redis.call('DEL', keys[index]) end
  redis.pcall('SREM', OWNER .. owner, id)
  redis.pcall('ZREM', READY .. lane, id)
until true
