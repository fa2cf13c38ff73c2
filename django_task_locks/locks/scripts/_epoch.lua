-- Before every operation: is Redis what the caller takes it for? The last argument is the epoch that
-- must stand here, "" for callers that keep none. With IDENTIFIES the server looks whether it is the
-- one that the epoch names; other callers have looked when they connected.

do
  local epoch = ARGV[#ARGV]
  ARGV[#ARGV] = nil
  if epoch ~= '' then
    local found = redis.pcall('GET', EPOCH) or NO_EPOCH
    if type(found) == 'table' then return { 'foreign', EPOCH } end
    if found ~= epoch then return { 'epoch', found } end
    if IDENTIFIES then
      local server = epoch:match(':(.*)$')
      if server ~= '' and server ~= redis.call('INFO', 'server'):match('run_id:(%x+)') then
        return { 'epoch', found }
      end
    end
  end
end
