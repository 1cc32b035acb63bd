"""The log on Apache Kafka: the four log ports and the embedded broker; alone imports aiokafka."""

from infra.kafka.admin import KafkaAdmin
from infra.kafka.corrections import correct_clients
from infra.kafka.group import KafkaGroupReader
from infra.kafka.reader import KafkaReader
from infra.kafka.writer import KafkaWriter

__all__ = ["KafkaAdmin", "KafkaGroupReader", "KafkaReader", "KafkaWriter"]

correct_clients()
