"""A client of scikit-learn."""

import warnings

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from fedcohort.flower import answer_queries
from sklearn_quickstart.data import share

app = ClientApp()


def mine(context: Context):
    node = context.node_config
    return share(int(node["partition-id"]), int(node["num-partitions"]))


answer_queries(app, size=lambda c: len(mine(c)[0]), profile=lambda _, c: mine(c)[0].mean(axis=0))


def received(message: Message) -> LogisticRegression:
    model = LogisticRegression(max_iter=1, warm_start=True)
    model.classes_ = np.arange(10)
    model.coef_, model.intercept_ = message.content["arrays"].to_numpy_ndarrays()
    return model


@app.train()
def fit(message: Message, context: Context) -> Message:
    model, (x, y) = received(message), mine(context)
    # Every client must have seen every class, else coefficients have other shapes.
    x, y = np.concatenate([x, np.zeros((10, 64), np.float32)]), np.concatenate([y, np.arange(10)])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model.fit(x, y)
    loss = log_loss(y, model.predict_proba(x), labels=np.arange(10))
    content = {
        "arrays": ArrayRecord([model.coef_, model.intercept_]),
        "metrics": MetricRecord({"train_logloss": loss, "num-examples": len(x)}),
    }
    return Message(RecordDict(content), reply_to=message)


@app.evaluate()
def score(message: Message, context: Context) -> Message:
    model, (x, y) = received(message), mine(context)
    metrics = {"test_accuracy": float(model.score(x, y)), "num-examples": len(x)}
    return Message(RecordDict({"metrics": MetricRecord(metrics)}), reply_to=message)
