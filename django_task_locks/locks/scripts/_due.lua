-- Letting in the requests whose time has come.

-- Returns the ms until the next one's time, "" without a next one; 0 if there were more than one call
-- lets in. The caller has looked whether the counter is ours. What it takes is inside, since most calls
-- need none of it, and each function costs as much as a command.
local function promote_due()
  local head, due = first_waiting(DUE)
  if not head then return '' end
  local now = now_ms()
  if due > now then return as_text(due - now) end

  local MOST = math.min(BATCH, 100)
  local LATER = 1000 -- ms after which one is looked at again that a foreign value keeps out

--@include _admit

  -- As a new request. Who cannot be let in for something foreign keeps nobody else out.
  local function promote(id)
    local request = read(id)
    if not request or request.state ~= 'due' then
      redis.call('ZREM', DUE, id)
      return
    end
    local bad, obstacles, revocable = foreign(READY .. request.lane, 'zset'), nil, nil
    if not bad then
      request.rank = request.rank + next_number()
      request.score = as_text(request.rank)
      obstacles, revocable, bad = look_around(request)
    end
    if bad then
      redis.call('ZADD', DUE, as_text(now + LATER), id)
      return
    end
    redis.call('ZREM', DUE, id)
    admit(request, obstacles, revocable)
  end

  local ids = redis.call('ZRANGEBYSCORE', DUE, '-inf', as_text(now), 'LIMIT', 0, MOST)
  for _, id in ipairs(ids) do promote(id) end
  head, due = first_waiting(DUE)
  return head and as_text(math.max(0, due - now)) or ''
end
