-- Alerts in ksqlDB: a stream of them with their columns, and datasets that raise three within ten minutes.
-- Put your alert topic in place of retail-watch.alerts.

-- Reads committed events only, so each alert counts once. Without it an event may come more than once.
SET 'processing.guarantee' = 'exactly_once_v2';
SET 'auto.offset.reset' = 'earliest';

-- Everything that is released. Other types than alerts have no gap, bound or estimate: those columns are null then.
CREATE STREAM released (
  dataset_key VARCHAR KEY,
  id VARCHAR,
  source VARCHAR,
  type VARCHAR,
  subject VARCHAR,
  `time` VARCHAR,
  shard INTEGER,
  sequence BIGINT,
  data STRUCT<
    dataset VARCHAR,
    monitor VARCHAR,
    series VARCHAR,
    query_id VARCHAR,
    threshold DOUBLE,
    gap DOUBLE,
    estimate DOUBLE,
    bound DOUBLE,
    beta DOUBLE,
    run BIGINT,
    number BIGINT,
    account STRUCT<measure VARCHAR, charge DOUBLE, spent DOUBLE, reserved DOUBLE, `limit` DOUBLE>
  >
) WITH (
  KAFKA_TOPIC = 'retail-watch.alerts',
  KEY_FORMAT = 'KAFKA',
  VALUE_FORMAT = 'JSON',
  TIMESTAMP = '`time`',
  TIMESTAMP_FORMAT = 'yyyy-MM-dd''T''HH:mm:ss.SSSX'
);

CREATE STREAM alerts AS
  SELECT
    dataset_key,
    id,
    data->monitor AS monitor,
    data->series AS series,
    data->gap AS gap,
    data->bound AS bound,
    data->beta AS beta,
    data->account->spent AS spent,
    data->account->`limit` AS budget_limit
  FROM released
  WHERE type = 'io.stream-svt.alert.v1'
  EMIT CHANGES;

-- What is computed from alerts costs no further budget: they are released.
CREATE TABLE bursts AS
  SELECT dataset_key, COUNT(*) AS alerts
  FROM alerts
  WINDOW TUMBLING (SIZE 10 MINUTES)
  GROUP BY dataset_key
  HAVING COUNT(*) >= 3
  EMIT CHANGES;
