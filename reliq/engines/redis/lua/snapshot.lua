-- snapshot: notes the counts and the ledger of many queues, each once in an interval.
--
-- The history of a queue is a hash of blocks: field: the number of the block, which begins so
-- many times sixty intervals after the epoch. A block is its snapshots, one after the other:
-- number of the interval in the block, what is counted (see below) with 7 bits in each byte, and how
-- often the same came again in the intervals behind it. Beside the blocks stands "noted": the
-- interval of the last snapshot, how many bytes of it are counts, and the counters then.
--
-- ARGV[1] interval (ms)
--
-- Counted are messages: ready, delayed, unacked, dead; and since the snapshot before: published,
-- delivered, acked, redelivered, failed deliveries, dead-lettered, expired. A queue that goes by itself
-- (auto_delete, x-expires) has no history.
--
-- Returns ms until the next interval begins
-- limits: HISTORY_BLOCKS
local interval = tonumber(ARGV[1])

-- clock: now
local current = math.floor(now / interval)
local block = math.floor(current / 60)

-- use: whole

-- Returns a number as bytes: 7 bits in each, the lowest first; the eighth says that more follow.
local function packed(number)
  local bytes = {}
  while number > 127 do
    bytes[#bytes + 1] = string.char(128 + number % 128)
    number = math.floor(number / 128)
  end
  bytes[#bytes + 1] = string.char(number)
  return table.concat(bytes)
end

for n = 0, #KEYS - 8, 8 do
  -- keys of each: ready, delayed, unacked_index, dead, stats, meta, history, guard
  local noted = redis.pcall('HGET', history, 'noted')
  noted = type(noted) == 'string' and noted or ''
  -- Mostly another consumer was here before.
  if whole(string.match(noted, '^%d+')) ~= current then
    -- Returns what is counted, as bytes, and the counters as they are now.
    local function counts(before)
      local found = {packed(redis.call('ZCARD', ready)), packed(redis.call('ZCARD', delayed)),
        packed(redis.call('ZCARD', unacked_index)), packed(redis.call('ZCARD', dead))}
      local ledger = redis.call('HMGET', stats, 'published', 'token', 'job_events', 'acked',
        'redelivered', 'lapsed', 'nacked', 'dead_lettered', 'expired')
      for i = 1, 9 do
        ledger[i] = whole(ledger[i]) or 0
      end
      local published, token, events, acked, redelivered, lapsed, nacked, died, expired =
        unpack(ledger)
      -- Events of jobs are numbered as leases are.
      local counters = {published, math.max(token - events, 0), acked, redelivered,
        lapsed + nacked, died, expired}
      local known = string.gmatch(before or '', '%d+')
      for i, counter in ipairs(counters) do
        found[#found + 1] = packed(math.max(counter - (whole(known()) or counter), 0))
        counters[i] = string.format('%.0f', counter)
      end
      return table.concat(found), table.concat(counters, ' ')
    end

    -- Forgets the blocks that are too old; and those to come: the clock was set back.
    local function forget_old()
      for _, name in ipairs(redis.call('HKEYS', history)) do
        local number = name ~= 'noted' and (whole(name) or -1)
        if number and (number < block - HISTORY_BLOCKS or number > block) then
          redis.call('HDEL', history, name)
        end
      end
    end

    local function take_snapshot()
      local about = redis.call('HMGET', meta, 'exists', 'auto_delete', 'expires')
      if not about[1] or about[2] or about[3] then
        return
      end
      local last, size, before = string.match(noted, '^(%d+) (%d+) ([%d ]+)$')
      local counted, counters = counts(before)
      local records = redis.call('HGET', history, block) or ''
      local again = string.byte(records, -1) or 0
      if records == '' then
        forget_old()
      end
      if whole(last) == current - 1 and records ~= '' and again < 59
          and string.sub(records, -(whole(size) or 0) - 1, -2) == counted then
        records = string.sub(records, 1, -2) .. string.char(again + 1)
      else
        records = records .. string.char(current % 60) .. counted .. string.char(0)
      end
      redis.call('HSET', history, block, records,
        'noted', string.format('%.0f %d %s', current, #counted, counters))
    end

    -- A queue one of whose keys holds something else is in nobody's way.
    pcall(take_snapshot)
  end
end
return interval - now % interval
