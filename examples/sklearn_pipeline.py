"""A pipeline of scikit-learn with three models to choose from.

``--quick`` evaluates few candidates.
"""

import sys

from scipy.stats import loguniform, randint
from sklearn.datasets import load_breast_cancer
from sklearn.ensemble import RandomForestClassifier
from sklearn.model_selection import train_test_split
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import Pipeline
from sklearn.preprocessing import MinMaxScaler, StandardScaler
from sklearn.svm import SVC

from botorch_structured.integrations.sklearn import StructuredSearchCV

QUICK = "--quick" in sys.argv
X, y = load_breast_cancer(return_X_y=True)
X_train, X_test, y_train, y_test = train_test_split(X, y, random_state=0)
pipeline = Pipeline([("scale", StandardScaler()), ("model", SVC())])
scalers = {"scale": ["passthrough", StandardScaler(), MinMaxScaler()]}
space = [
    scalers
    | {
        "model": [SVC()],
        "model__C": loguniform(1e-3, 1e3),
        "model__gamma": loguniform(1e-5, 1.0),
    },
    scalers
    | {
        "model": [KNeighborsClassifier()],
        "model__n_neighbors": randint(1, 50),
        "model__weights": ["uniform", "distance"],
    },
    {
        "model": [RandomForestClassifier(n_estimators=20, random_state=0)],
        "model__max_depth": randint(2, 20),
    },
]
search = StructuredSearchCV(pipeline, space, n_iter=6 if QUICK else 40, random_state=0)
search.fit(X_train, y_train)
print(search.best_params_, search.best_score_)
print("accuracy on the test data:", search.score(X_test, y_test))
