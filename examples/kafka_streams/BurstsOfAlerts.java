import static org.apache.kafka.streams.StreamsConfig.APPLICATION_ID_CONFIG;
import static org.apache.kafka.streams.StreamsConfig.BOOTSTRAP_SERVERS_CONFIG;
import static org.apache.kafka.streams.StreamsConfig.EXACTLY_ONCE_V2;
import static org.apache.kafka.streams.StreamsConfig.PROCESSING_GUARANTEE_CONFIG;
import static org.apache.kafka.streams.StreamsConfig.STATE_DIR_CONFIG;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.ObjectMapper;
import java.time.Duration;
import java.util.Properties;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.KeyValue;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.Topology;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Grouped;
import org.apache.kafka.streams.kstream.Materialized;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.kstream.TimeWindows;
import org.apache.kafka.streams.state.Stores;

/**
 * Says on a topic of its own when a dataset has raised three alerts within ten minutes.
 *
 * <p>Takes KAFKA (brokers), ALERTS (the alert topic) and BURSTS (the topic to write to) from the environment.
 * What is computed from alerts costs no further budget, however it is computed: they are released.
 */
public final class BurstsOfAlerts {
    private static final String ALERT = "io.stream-svt.alert.v1";
    private static final Duration WINDOW = Duration.ofMinutes(10);
    private static final long ENOUGH = 3;
    private static final ObjectMapper JSON = new ObjectMapper();

    private BurstsOfAlerts() {}

    public static void main(String[] arguments) {
        Properties settings = new Properties();
        settings.put(APPLICATION_ID_CONFIG, System.getenv().getOrDefault("APPLICATION", "bursts-of-alerts"));
        settings.put(BOOTSTRAP_SERVERS_CONFIG, System.getenv().getOrDefault("KAFKA", "127.0.0.1:9092"));
        settings.put(STATE_DIR_CONFIG, System.getProperty("java.io.tmpdir") + "/bursts-of-alerts");
        // Reads committed events only, so each alert counts once, and writes each burst once.
        settings.put(PROCESSING_GUARANTEE_CONFIG, EXACTLY_ONCE_V2);
        settings.put("auto.offset.reset", "earliest");
        settings.put("commit.interval.ms", "100");

        KafkaStreams streams =
                new KafkaStreams(topology(System.getenv("ALERTS"), System.getenv("BURSTS")), settings);
        Runtime.getRuntime().addShutdownHook(new Thread(streams::close));
        streams.start();
    }

    static Topology topology(String alerts, String bursts) {
        StreamsBuilder builder = new StreamsBuilder();
        builder.stream(alerts, Consumed.with(Serdes.String(), Serdes.String()))
                .filter((dataset, event) -> isAlert(event))
                .groupByKey(Grouped.with(Serdes.String(), Serdes.String()))
                .windowedBy(TimeWindows.ofSizeWithNoGrace(WINDOW))
                // In memory, and on a changelog topic: nothing native is needed.
                .count(
                        Materialized.<String, Long>as(
                                        Stores.inMemoryWindowStore("alerts-by-dataset", WINDOW, WINDOW, false))
                                .withKeySerde(Serdes.String())
                                .withCachingDisabled())
                .toStream()
                .filter((window, count) -> count == ENOUGH)
                .map(
                        (window, count) ->
                                KeyValue.pair(
                                        window.key(),
                                        window.key() + ": " + count + " alerts since " + window.window().startTime()))
                .to(bursts, Produced.with(Serdes.String(), Serdes.String()));
        return builder.build();
    }

    private static boolean isAlert(String event) {
        try {
            return ALERT.equals(JSON.readTree(event).path("type").asText());
        } catch (JsonProcessingException | IllegalArgumentException noEvent) {
            return false;
        }
    }
}
