from belljar import Sandbox

parent = Sandbox(template="python-data")
parent.run("import pandas; df = pandas.read_csv('/data.csv'); print(df.head())")

branches = []
for approach in ["fillna", "dropna", "interpolate"]:
    child = parent.fork()
    # The page's `fillna()` without a value is refused by pandas itself, and text cannot be interpolated.
    call = {"fillna": "fillna(0)", "interpolate": "select_dtypes('number').interpolate()"}.get(approach, f"{approach}()")
    done = child.run(f"df_{approach} = df.{call}; print(df_{approach}.describe())")
    print(approach, "count" in done.stdout, done.error)
    branches.append(child)

# Pick the best, throw away the rest
winner = branches[0]
for b in branches[1:]:
    b.close()
winner.close()
parent.close()
