-- Putting a request off until its time: it takes no place in any queue before.

local function is_early(due)
  return due ~= '' and tonumber(due) > now_ms()
end

-- Its arrival is counted when its time comes: until then its score is that of its priority alone.
local function postpone(request, due)
  request.rank = request.rank - request.rank % ARRIVALS
  request.score = as_text(request.rank)
  set_state(request, 'due')
  redis.call('ZADD', DUE, due, request.id)
  -- one idle executor that knows the next time is enough, whatever its lanes
  if first_waiting(DUE) == request.id then light('') end
end
