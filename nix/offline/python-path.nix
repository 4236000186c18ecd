# The PYTHONPATH that reaches the given packages and all they depend on.
lib: site: packages:
lib.concatMapStringsSep ":" (p: "${p.package}/${site}") (
  builtins.genericClosure {
    startSet = map (package: {
      key = package.pname;
      inherit package;
    }) packages;
    operator =
      item:
      map (package: {
        key = package.pname;
        inherit package;
      }) item.package.propagated;
  }
)
