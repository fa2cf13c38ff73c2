-- Lighting lanes: a marker tells one idle executor, which lights the lane again if more is ready.

local function light(lane)
  redis.pcall('ZADD', WAKE .. lane, 0, '1')
end

-- Nothing is ready in the lane.
local function put_out(lane)
  redis.pcall('ZREM', WAKE .. lane, '1')
end

local function light_ready_lanes()
  for _, lane in ipairs(redis.call('HKEYS', LANES)) do
    if redis.call('EXISTS', READY .. lane) == 1 then light(lane) end
  end
end
