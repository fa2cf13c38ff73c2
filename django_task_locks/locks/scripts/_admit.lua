-- Letting in a request that has arrived: all of its locks are given, or it is queued.

local function is_free(request)
  local keys, locks = {}, {}
  for index, resource in ipairs(request.exclusive) do keys[index] = LOCK .. resource end
  for _, resource in ipairs(request.shared) do
    keys[#keys + 1] = WAIT_X .. resource
    locks[#locks + 1] = LOCK .. resource
  end
  local taken = 0
  chunked(keys, function(...) taken = taken + redis.call('EXISTS', ...) end)
  -- SDIFF looks at the type of each key, whatever the others hold: an error is an exclusive holder
  chunked(locks, function(...)
    if redis.pcall('SDIFF', REQUEST .. request.id, ...).err then taken = taken + 1 end
  end)
  return taken == 0
end

-- Whether an unclaimed grant scores later than this request: only then anything can be revoked.
local function has_later_grants(request)
  for _, lane in ipairs(redis.call('HKEYS', LANES)) do
    local last = redis.pcall('ZREVRANGE', READY .. lane, 0, 0, 'WITHSCORES')
    if not last.err and last[2] and tonumber(last[2]) > request.rank then return true end
  end
  return false
end

-- What is in its way and what may be sent back, as `survey` tells; only the name of a key, as the
-- third, where a foreign value keeps it from being granted and from being queued.
local function look_around(request)
  if is_free(request) then return {}, {} end
  local bad = foreign_queue(request)
  local function check_lock(resource)
    local type = redis.call('TYPE', LOCK .. resource).ok
    if type ~= 'none' and type ~= 'string' and type ~= 'set' then bad = LOCK .. resource end
  end
  for _, resource in ipairs(request.exclusive) do check_lock(resource) end
  for _, resource in ipairs(request.shared) do
    check_lock(resource)
    bad = bad or foreign(WAIT_X .. resource, 'zset')
  end
  if bad then return nil, nil, bad end
  return survey(request, has_later_grants(request), 10)
end

local function admit(request, obstacles, revocable)
  for _, other in ipairs(revocable) do revoke(other) end
  if #obstacles == 0 then
    grant(request)
  else
    enqueue(request)
    set_state(request, 'waiting')
  end
end
